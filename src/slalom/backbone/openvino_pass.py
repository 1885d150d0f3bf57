"""Tokens to logits by a compiled OpenVINO graph whose cache lies in blocks: prompts read, rollouts under way."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch

from slalom.backbone.engine import Memory, Prefix
from slalom.backbone.openvino_blocks import Block, BlockMemory, Pool
from slalom.types import Tokens

TRIED = 80  # tokens of the texts that test whether a row's logits depend on its batch
STEADY = 4  # `least_rows` at the most: padding every pass to more rows would make a single text slow
TOGETHER = 64  # rows of a decoding pass at the most: a larger one is hardly faster a row
TOKENS = 1024  # tokens of a pass over prompts at the most
LOGITS = 256  # positions whose logits are in memory at once when whole texts are scored
KNOWN = 32  # blocks of the latest prompts that are kept for reuse: most prompts begin with the same instruction


class Piece(NamedTuple):
    """The next tokens of a text."""

    tokens: list[int]
    past: int  # tokens before them
    blocks: list[Block]  # of all the text, these tokens included
    wanted: int = 1  # of the last tokens, whose logits are asked for


class Graph:
    """A compiled graph and its blocks, for one thread at a time.

    A text's logits do not depend on the texts read beside it: each has its own blocks, prompts are read block by block
    whoever shares them, and where fewer texts than `least_rows` would be read by another kernel, others fill up.
    """

    def __init__(self, compiled: ov.CompiledModel, least_rows: int) -> None:
        self.turn, self.least_rows = threading.RLock(), least_rows
        self._request = compiled.create_infer_request()
        self.pool = Pool(self._request, [port for port in compiled.inputs if "_cache." in port.any_name])
        self._filling = self.pool.take()
        self.known: OrderedDict[tuple[int, ...], Block] = OrderedDict()
        self.own = threading.local()  # of a thread whose rollouts share passes with others': its way to `read` together

    def read(self, pieces: list[Piece]) -> torch.Tensor:
        """The logits [w, V] after the wanted tokens of each piece, one piece after the other."""
        filling = [Piece([0], 0, [self._filling])] * (self.least_rows - len(pieces))
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        wanted = [np.arange(end - piece.wanted, end) for piece, end in zip(pieces, ends, strict=True)]
        everyone = [*pieces, *filling]
        positions = [np.arange(piece.past, piece.past + len(piece.tokens)) for piece in everyone]
        places = np.concatenate(wanted)
        inputs = {
            "input_ids": np.array([token for piece in everyone for token in piece.tokens], np.int64),
            "position_ids": np.concatenate(positions)[:, None],
            "past_lens": np.array([piece.past for piece in everyone], np.int32),
            "subsequence_begins": _begins([len(piece.tokens) for piece in everyone]),
            "block_indices": np.array([block.number for piece in everyone for block in piece.blocks], np.int32),
            "block_indices_begins": _begins([len(piece.blocks) for piece in everyone]),
            "max_context_len": np.array(max(piece.past + len(piece.tokens) for piece in everyone), np.int32),
            "wanted": places,
        }
        self._request.infer(inputs)
        logits = torch.from_numpy(np.array(self._request.get_output_tensor(0).data))
        return logits.view(len(places), -1)

    def read_all(self, pieces: list[Piece]) -> torch.Tensor:
        """The same for any number of pieces of a rollout, in as many passes as that takes."""
        with self.turn:
            read = [self.read(pieces[start : start + TOGETHER]) for start in range(0, len(pieces), TOGETHER)]
        return read[0] if len(read) == 1 else torch.cat(read)

    def keep(self, tokens: tuple[int, ...], block: Block) -> None:
        """Remember the block that ends with these tokens of a prompt, and forget the one asked for longest ago."""
        self.known[tokens] = block
        self.known.move_to_end(tokens)
        if len(self.known) > KNOWN:
            self.known.popitem(last=False)

    def room(self, blocks: list[Block], past: int, count: int) -> tuple[list[Block], list[tuple[Block, Block]]]:
        """The blocks of a text that goes on after `past` tokens with so many more, and which of them are to be copied.

        Those that are full already are shared; the one it goes on in is copied, for another may go on in it as well.
        """
        size = self.pool.size
        full, end = past // size, -(-(past + count) // size)
        new = [self.pool.take() for _ in range(end - full)]
        copies = [(blocks[full], new[0])] if past % size else []
        return [*blocks[:full], *new], copies


def _begins(counts: list[int]) -> np.ndarray:
    """Where each of several parts begins that follow one another, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def prefill(graph: Graph, prompts: Tokens) -> Prefix:
    """Read the prompts once, block by block; a block that several begin with, or a recent one began with, but once."""
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(*prompts, strict=True)]
    tables: list[list[Block]] = [[] for _ in rows]
    logits: dict[int, torch.Tensor] = {}
    with graph.turn:
        for begin in range(0, max(map(len, rows)), graph.pool.size):
            logits.update(_read_block(graph, rows, tables, begin))
    found = torch.stack([logits[row] for row in range(len(rows))])
    return Prefix(memory=BlockMemory(tables), mask=prompts.mask, logits=found)


def _read_block(graph: Graph, rows: list[list[int]], tables: list[list[Block]], begin: int) -> dict[int, torch.Tensor]:
    """Give every row that is so long its block that begins there, read if it is new; the logits after those read."""
    end, pieces = begin + graph.pool.size, dict[int, Piece]()
    blocks = dict[tuple[int, ...], Block]()
    for row, ids in enumerate(rows):
        shared = tuple(ids[:end]) if len(ids) > end else None  # after a prompt's last token the logits are needed
        known = None if shared is None else blocks.get(shared) or graph.known.get(shared)
        if len(ids) > begin:
            tables[row].append(known or graph.pool.take())
        if len(ids) > begin and known is None:
            pieces[row] = Piece(ids[begin:end], begin, tables[row])
        if shared is not None:
            blocks[shared] = tables[row][-1]
    parts = list(_parts(list(pieces), max(1, TOKENS // graph.pool.size)))
    read = [graph.read([pieces[row] for row in some]) for some in parts]
    for tokens, block in blocks.items():
        graph.keep(tokens, block)
    return {row: one for some, found in zip(parts, read, strict=True) for row, one in zip(some, found, strict=True)}


def _parts(rows: list[int], count: int) -> Iterator[list[int]]:
    """So many at a time."""
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


class OpenVINOPass:
    """A rollout: each row goes on in blocks of its own from where it begins."""

    def __init__(
        self, graph: Graph, prefix: Prefix, rows: torch.Tensor, places: list[int], memory: Memory | None
    ) -> None:
        given = prefix.memory.select(rows) if memory is None else memory
        assert isinstance(given, BlockMemory)
        self.graph, self.tables = graph, list(given.tables)
        before = prefix.mask.sum(-1)[rows].tolist()
        self.firsts = [prompt + place for prompt, place in zip(before, places, strict=True)]
        self.begun: set[int] = set()  # rows that have read something

    @property
    def memory(self) -> BlockMemory:
        """All that was read, or what was given of rows that read nothing."""
        return BlockMemory(self.tables)

    def read(self, step: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The next token of just these rows."""
        listed, ids = rows.tolist(), tokens.tolist()
        pasts = {row: self.firsts[row] + step for row in listed}
        with self.graph.turn:
            self._make_room(pasts)
        read = getattr(self.graph.own, "read", self.graph.read_all)
        return read([Piece([ids[row]], past, self.tables[row]) for row, past in pasts.items()])

    def _make_room(self, pasts: dict[int, int]) -> None:
        """A block for each row's next token, if it has none of its own."""
        copies: list[tuple[Block, Block]] = []
        for row, past in pasts.items():
            if row not in self.begun:
                self.begun.add(row)
                self.tables[row], copied = self.graph.room(self.tables[row], past, 1)
                copies += copied
            elif past == len(self.tables[row]) * self.graph.pool.size:
                self.tables[row] = [*self.tables[row], self.graph.pool.take()]
        self.graph.pool.copy(copies)


def log_probs(graph: Graph, prompts: Tokens, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The LM's log-probability of every token [B, n] of continuations given whole, so many of each [B]: [B, n]."""
    prefix, before, ends = prefill(graph, prompts), prompts.mask.sum(-1).tolist(), lengths.tolist()
    assert isinstance(prefix.memory, BlockMemory)
    found = torch.zeros(tokens.shape)
    if tokens.shape[1]:
        found[:, 0] = prefix.logits.log_softmax(-1).gather(-1, tokens[:, :1])[:, 0]
    longer = sorted((row for row, end in enumerate(ends) if end > 1), key=lambda row: ends[row])
    for some in _filled(longer, ends, LOGITS):
        logits = _read_whole(graph, prefix.memory, before, tokens, ends, some)
        rest = torch.cat([tokens[row, 1 : ends[row]] for row in some])
        values = (logits.gather(-1, rest[:, None]) - logits.logsumexp(-1, keepdim=True))[:, 0]
        for row, own in zip(some, values.split([ends[row] - 1 for row in some]), strict=True):
            found[row, 1 : ends[row]] = own
    return found


def _filled(rows: list[int], sizes: list[int], most: int) -> Iterator[list[int]]:
    """As many rows at a time as hold no more than so much together, one at least."""
    some, held = list[int](), 0
    for row in rows:
        if some and held + sizes[row] > most:
            yield some
            some, held = [], 0
        some, held = [*some, row], held + sizes[row]
    if some:
        yield some


def _read_whole(
    graph: Graph, memory: BlockMemory, before: list[int], tokens: torch.Tensor, ends: list[int], rows: list[int]
) -> torch.Tensor:
    """The logits after all tokens but the last of some continuations, one after the other: [w, V]."""
    pieces, copies = [], list[tuple[Block, Block]]()
    with graph.turn:
        for row in rows:
            more = ends[row] - 1
            blocks, copied = graph.room(memory.tables[row], before[row], more)
            pieces.append(Piece(tokens[row, :more].tolist(), before[row], blocks, more))
            copies += copied
        graph.pool.copy(copies)
        return graph.read(pieces)


@torch.inference_mode()
def steady_rows(compiled: ov.CompiledModel, vocabulary: int, longest: int) -> int | None:
    """The fewest texts from which on one's logits are the same to the last bit, whoever is beside it.

    OpenVINO may take another kernel for a single text than for several. None if there is no such number. Tried on
    texts of several blocks, if the model reads so many tokens, of all its vocabulary.
    """
    prompt = min(TRIED, longest) - 8
    ids = torch.randint(vocabulary, (TOGETHER, prompt + 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(TOGETHER, prompt, dtype=torch.long)
    mask[1::2, : prompt // 2], mask[2::4, : prompt - 5] = 0, 0  # padded on the left: prompts of several lengths
    first, sizes = {}, [*range(1, STEADY + 2), TOGETHER // 2, TOGETHER]
    for count in sizes:
        graph = Graph(compiled, 1)
        prefix = prefill(graph, Tokens(ids[:count, :prompt], mask[:count]))
        run = OpenVINOPass(graph, prefix, torch.arange(count), [0] * count, None)
        reads = [run.read(step, ids[:count, prompt + step], torch.arange(count))[0] for step in range(8)]
        first[count] = torch.stack([prefix.logits[0], *reads])
    others = [count for count in sizes if not first[count].equal(first[TOGETHER])]
    steady = 1 + max(others, default=0)
    return steady if steady <= STEADY else None
