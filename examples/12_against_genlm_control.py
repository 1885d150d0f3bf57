"""Against a living rival: genlm-control's sequential Monte Carlo, with our guide as its potential.

    python -m venv genlm && genlm/bin/pip install '.[eval]' genlm-control torch==2.13.0     # an environment of its own
    genlm/bin/python examples/12_against_genlm_control.py --quick
    genlm/bin/python examples/12_against_genlm_control.py --preset standard --tell --judge --out results/genlm-control

The default LM proposes tokens for a number of particles; after every token the guide's log-probability of the wish
reweighs them, and they are resampled where too few carry the weight. The heaviest particle is the text. With --out,
texts stand in a folder as `slalom eval` writes it: `slalom report` and `slalom eval sheet` read it beside others.

genlm-control writes by its own rules: no repetition penalty, and a text may end early.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

NAME = "genlm-control"


def main() -> None:
    """Write what is missing in the folder, print every text, then the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two texts, four particles")
    parser.add_argument("--task", default="everyday", help="a task of slalom eval whose wishes are classifiers")
    parser.add_argument("--preset", default="quick", help="how much of the task")
    parser.add_argument("--particles", type=int, default=10, help="texts under way at a time")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the LM; best-of-n draws at 0.8 too")
    parser.add_argument("--ess", type=float, default=0.5, help="resample below this share of the particles")
    parser.add_argument("--tell", action="store_true", help="tell the LM the wish as well")
    parser.add_argument("--judge", action="store_true", help="let the judges read the texts, and write the report")
    parser.add_argument("--out", type=Path, help="a folder to write, or to go on with")
    options = parser.parse_args()
    if importlib.util.find_spec("genlm") is None:
        print(f"{NAME} is not installed here; this file's first lines say how to make an environment for it")
        return
    with tempfile.TemporaryDirectory() as scratch:
        run(options, options.out or Path(scratch) / "out")


def run(options: argparse.Namespace, folder: Path) -> None:
    """One chunk, that is one text, after the other; each on the disk before the next begins."""
    import slalom
    from slalom.evaluation import report, store
    from slalom.evaluation.cells import Cell
    from slalom.evaluation.judges import judge_set
    from slalom.evaluation.judging import judge_texts
    from slalom.evaluation.plan import plan
    from slalom.evaluation.run_folder import RunSettings, file_lock, start_run
    from slalom.evaluation.summary import read_results
    from slalom.evaluation.tasks import constraint_of, load_task
    from slalom.evaluation.writing import finished_chunks

    task = load_task(options.task)
    particles = 4 if options.quick else options.particles
    knobs = {"particles": particles, "ess": options.ess, "temperature": options.temperature}
    cell = Cell(task.name, NAME, told=options.tell, knobs=tuple(knobs.items()))
    with file_lock(folder):
        settings = RunSettings((cell,), options.preset, engine="torch")
        made = start_run(folder, settings, {task.name: task})
        planned = [chunk for chunk in plan(made, 1) if chunk.cell == cell][: 2 if options.quick else None]
        done = finished_chunks(made, plan(made, 1))
        lm = slalom.load(engine="torch")
        rival = Rival(lm, **knobs)
        for chunk in planned:
            if chunk.key in done:
                continue
            (item,) = chunk.items
            wish = constraint_of(item.parts)
            records = []
            for record_id, seed in zip(chunk.record_ids(0), range(chunk.samples), strict=True):
                (request,) = lm.requests(item.prompt, wish, length=chunk.length, tell=options.tell, seed=seed)
                found = rival.write(request)
                records.append(
                    {
                        "id": record_id,
                        "chunk": chunk.key,
                        "task": task.name,
                        "cell": chunk.cell.id,
                        "item": item.id,
                        "wish": item.wish,
                        "topic": item.topic,
                        "parts": item.parts,
                        "prefix": "",
                        "prompt": item.prompt,
                        "length": chunk.length,
                        "seed": seed,
                        "told": request.told,
                        "sampler": NAME,
                        "preset": "default",
                        "strength": 1.0,
                        "knobs": knobs,
                        "steps": particles,
                        "model": lm.name,
                        "engine": "torch",
                        "versions": made.versions,
                        "rows": 1,
                        **found,
                    }
                )
                print(f"{item.wish}: {item.prompt}|{found['text']}")
                print(f"    guide {found['constraints'][0]['probability']:.3f}, {found['seconds']:.2f} s", flush=True)
            # A chunk's time and passes are those of all its texts.
            together = {name: sum(record[name] for record in records) for name in ("seconds", "passes")}
            store.append(made.generations, [record | together | {"rows": len(records)} for record in records])
        written = [record for record in store.read(made.generations) if record["cell"] == cell.id]
        print(
            f"{len(written)} texts: guide {fmean(one['constraints'][0]['probability'] for one in written):.3f}, "
            f"the LM's own perplexity {median(one['perplexity'] for one in written):.1f} (median), "
            f"{fmean(one['seconds'] / one['rows'] for one in written):.2f} s and "
            f"{fmean(one['passes'] / one['rows'] for one in written):.0f} LM passes a text"
        )
        if options.judge:
            judge_texts(made, plan(made, 1), judge_set("ours"), lambda now: None)
            made.save()
            results = [read_results(folder)]
            report.write(folder, report.title_of(results), report.blocks_of(results))


class Rival:
    """genlm-control on the LM that slalom has loaded."""

    def __init__(self, lm: Any, particles: int, ess: float, temperature: float) -> None:
        from genlm.backend.llm import AsyncTransformer
        from genlm.control import PromptedLLM

        self.lm, self.particles, self.ess = lm, particles, ess
        self.backend = AsyncTransformer(lm.model, lm.tokenizer, batch_size=particles)
        self.llm = PromptedLLM(self.backend, temperature=temperature)
        self.guide = guide_potential(lm, self.llm)
        self.passes = 0
        lm.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: Any, inputs: Any, named: dict[str, Any]) -> None:
        ids = inputs[0] if inputs else named["input_ids"]
        self.passes += ids.shape[0]  # one logit row each, however much of its text is read again

    def write(self, request: Any) -> dict[str, Any]:
        """The heaviest particle's text, with what it cost and what the guide says of it."""
        import numpy
        import torch

        torch.manual_seed(request.seed)
        numpy.random.seed(request.seed)
        self.backend.clear_cache()
        self.backend.clear_kv_cache()
        self.passes, started = 0, time.perf_counter()
        self.backend.cache_kv(list(request.prompt.ids))
        ids = asyncio.run(self._sample(request))
        seconds, passes = time.perf_counter() - started, self.passes
        tokens = torch.tensor([ids])
        draft = self.lm.draft([request.prompt], tokens, torch.tensor([len(ids)]), torch.zeros(1, len(ids)))
        told = draft._replace(log_probs=self.lm.log_probs(draft))
        untold = draft._replace(prompts=[request.prompt.untold])
        untold = untold._replace(log_probs=self.lm.log_probs(untold))
        (verdict,) = request.constraint.judge(draft).verdicts()
        fields = ("name", "score", "probability", "satisfied")
        return {
            "text": draft.texts[0],
            "score": verdict.score,
            "constraints": [{name: getattr(part, name) for name in fields} for part in verdict.parts],
            "perplexity": untold.perplexity.item(),
            "told_perplexity": None if request.told is None else told.perplexity.item(),
            "seconds": round(seconds, 3),
            "passes": passes,
        }

    async def _sample(self, request: Any) -> list[int]:
        from genlm.control import EOS, SMC, direct_token_sampler

        self.llm.prompt_ids = list(request.prompt.ids)
        self.guide.request = request
        found = await SMC(direct_token_sampler(self.llm), critic=self.guide)(
            n_particles=self.particles, ess_threshold=self.ess, max_tokens=request.limits.length + 1
        )
        heaviest = found.contexts[int(found.log_weights.argmax())]
        return [token.token_id for token in heaviest if token is not EOS]


def guide_potential(lm: Any, llm: Any) -> Any:
    """The wish as a potential: the log-probability that the guide gives to it, of a text's beginning and of a whole."""
    import numpy
    import torch
    from genlm.control import EOS, Potential

    class Guide(Potential):
        """Reads all particles at once, for the request at hand."""

        request: Any = None

        async def complete(self, context: list[Any]) -> float:
            return float((await self.batch_complete([context]))[0])

        async def prefix(self, context: list[Any]) -> float:
            return float((await self.batch_complete([context]))[0])

        async def batch_prefix(self, contexts: list[list[Any]]) -> Any:
            return await self.batch_complete(contexts)

        async def batch_complete(self, contexts: list[list[Any]]) -> Any:
            rows = [[token.token_id for token in context if token is not EOS] for context in contexts]
            longest = max(1, *map(len, rows))
            tokens = torch.tensor([row + [lm.vocabulary.pad] * (longest - len(row)) for row in rows])
            lengths = torch.tensor([len(row) for row in rows])
            draft = lm.draft([self.request.prompt] * len(rows), tokens, lengths, torch.zeros(tokens.shape))
            wish = self.request.constraint
            chance = wish.probability(wish.prefix_score(draft))
            if chance is None:
                raise SystemExit(f"{wish.name} has no probability; take a task of classifiers")
            return numpy.log(chance.double().clamp(min=1e-9).numpy())

    return Guide(llm.vocab)


if __name__ == "__main__":
    main()
