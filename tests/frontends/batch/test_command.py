"""slalom batch, as a person or a script would use and misuse it."""

from __future__ import annotations

import csv
import datetime
import json
import sys
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from slalom.api import SteerableModel
from slalom.constraints.constraint import Constraint
from slalom.decoding.scheduler import Finished
from slalom.frontends.batch import command, job, texts
from slalom.frontends.batch.job import Count
from slalom.frontends.batch.lines import Line
from slalom.frontends.batch.reading import read_lines
from slalom.frontends.batch.texts import TextWriter, Work, wish_key
from slalom.frontends.specs import TextSpec
from tests.conftest import tiny_lm
from tests.frontends.batch.conftest import OPTIONS, mixed_rows, read_rows, run, write_rows
from tests.frontends.test_cli import run as slalom


def test_every_row_has_the_text_it_would_have_alone_in_the_order_of_the_input(models: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", mixed_rows(models, 9))
    out = run(models, source, tmp_path / "out.jsonl")
    assert out.exit_code == 0, out.stderr
    rows = read_rows(tmp_path / "out.jsonl")
    assert [row["line"] for row in rows] == [1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9]
    alone = slalom(
        *("generate", "we", "--keywords", "rain", "--seed", "1", "--model", f"{models}/lm"),
        *(*OPTIONS, "--length", "5", "--json"),
    )
    one = json.loads(alone.stdout)
    assert set(rows[2]) == set(one) - {"seconds", "tokens_per_second"} | {"line"}
    assert all(
        rows[2][name] == one[name] for name in ("text", "satisfied", "steps", "told", "seed", "sampler", "model")
    )
    assert rows[2]["perplexity"] == pytest.approx(one["perplexity"], rel=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_rows_fields_come_before_the_commands_and_what_it_brings_is_kept(models: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "we", "id": "a", "metadata": {"city": "Oslo"}},
        {"prompt": "we", "keywords": ["rain"], "length": 3, "id": 7},
    ]
    run(models, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", "--keywords", "soup")
    first, second = read_rows(tmp_path / "out.jsonl")
    assert (first["id"], first["metadata"]) == ("a", {"city": "Oslo"})
    assert (second["id"], "metadata" in second) == (7, False)
    assert [row["constraints"][0]["name"] for row in (first, second)] == ["keywords:any(soup)", "keywords:any(rain)"]


def test_the_commands_weights_are_for_rows_that_ask_for_what_is_weighed(models: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "we", "keywords": ["rain"]}, {"prompt": "we", "topic": "rain"}]
    rows += [{"prompt": "we", "topic": "rain", "weights": {"topic": 0.5}}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert run(models, source, tmp_path / "out.jsonl", "--weight", "keywords=2").exit_code == 1
    assert [row["line"] for row in read_rows(tmp_path / "out.jsonl")] == [1, 3]
    (bad,) = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert bad["error"] == "weights has 'keywords', which is not asked for; ask for it too, or weigh any of topic"


def test_rows_share_a_constraint_only_if_it_weighs_the_same() -> None:
    keys = [wish_key(TextSpec(keywords=["soup"], weights=weights)) for weights in ({}, {"keywords": 2})]
    assert keys[0] != keys[1]
    assert texts._constraint(keys[1]).name == "2 * keywords:any(soup)"


def test_bad_rows_are_listed_with_line_and_reason_and_the_others_written(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    good = json.dumps({"prompt": "we", "keywords": ["soup"]})
    bad = [
        "{broken",
        "[1]",
        json.dumps({"prompt": "we", "keywords": ["soup"], "colour": "red", "id": "b"}),
        json.dumps({"prompt": "we", "keywords": ["soup"], "length": 0}),
        json.dumps({"keywords": ["soup"]}),
        json.dumps({"prompt": "we"}),
        json.dumps({"prompt": " ", "keywords": ["soup"]}),
        json.dumps({"prompt": "we", "keywords": ["soup"], "sampler": "magic"}),
        json.dumps({"messages": [{"role": "user", "content": "hello"}], "keywords": ["soup"]}),
    ]
    source.write_text("\n".join([good, "", *bad, good]) + "\n", encoding="utf-8")
    out = run(models, source, tmp_path / "out.jsonl", "--json")
    assert out.exit_code == 1
    summary = json.loads(out.stdout)
    assert summary == {
        **{"rows": 11, "done": 11, "failed": 9, "texts": 2, "satisfied": summary["satisfied"]},
        **{"out": f"{tmp_path}/out.jsonl", "errors": f"{tmp_path}/out.jsonl.errors.jsonl"},
    }
    assert [row["line"] for row in read_rows(tmp_path / "out.jsonl")] == [1, 12]
    errors = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert [error["line"] for error in errors] == list(range(3, 12))
    assert errors[2]["id"] == "b"
    for error, word in zip(
        errors,
        ["no JSON", "object", "colour", "length", "prompt or messages", "steer towards", "empty", "magic", "template"],
        strict=True,
    ):
        assert word in error["error"]


def test_a_row_that_cannot_be_kept_as_json_fails_alone(models: Path, tmp_path: Path) -> None:
    source, good = tmp_path / "in.jsonl", '{"prompt": "we", "keywords": ["soup"]%s}'
    deep = ("[" * depth + "]" * depth for depth in (101, 900, 100_000))
    bad = [
        *(good % rf', "{name}": "a \ud800 b"' for name in ("metadata", "id", "prompt", r"\udfff")),
        good % r', "metadata": {"\ud800": [1]}',
        *(good % f', "metadata": {nested}' for nested in deep),
        *(good % f', "metadata": [{{"x": {number}}}]' for number in ("NaN", "-Infinity", "1e999")),
        "[" * 900 + "]" * 900,
    ]
    source.write_bytes("\n".join([good % "", *bad, ""]).encode() + b'{"prompt": "\xff"}\n' + (good % "").encode())
    out = run(models, source, tmp_path / "out.jsonl")
    assert out.exit_code == 1, out.exception
    assert [row["line"] for row in read_rows(tmp_path / "out.jsonl")] == [1, 15]
    errors = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert [error["line"] for error in errors] == list(range(2, 15))
    for error, word in zip(
        errors,
        [
            *["lone surrogate"] * 5,
            *["more than 100 deep"] * 3,
            *["has nan, which JSON", "has -inf, which JSON", "has inf, which JSON"],
            *["give an object", "byte 0xff in position 12"],
        ],
        strict=True,
    ):
        assert word in error["error"]


def test_a_parquet_row_that_cannot_be_kept_as_json_fails_alone(models: Path, tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    for name, values in {
        "date": [{"on": day}, {"on": None}],
        "bytes": [b"\x00", None],
        "days": [[day], []],
        "map": pa.array([[(day, 1)], []], pa.map_(pa.date32(), pa.int64())),
        "time": pa.array([1, None], pa.timestamp("ns")),
    }.items():
        table = pa.table({"prompt": [b"we", b"we"], "temperature": [Decimal("0.5")] * 2, "metadata": values})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        out = run(models, tmp_path / f"{name}.parquet", tmp_path / f"{name}.jsonl", "--keywords", "soup")
        assert out.exit_code == 1, out.exception
        assert [row["line"] for row in read_rows(tmp_path / f"{name}.jsonl")] == [2]
        (error,) = read_rows(tmp_path / f"{name}.jsonl.errors.jsonl")
        assert error["line"] == 1
        assert "JSON cannot hold" in error["error"] or "cannot be read" in error["error"]


def test_a_row_that_a_constraint_stumbles_over_fails_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = texts._constraint

    def stumbling(key: str) -> Constraint:
        return 1 / 0 if "day" in key else build(key)  # type: ignore[return-value]

    monkeypatch.setattr(texts, "_constraint", stumbling)
    rows = [{"prompt": "we", "keywords": [word]} for word in ("soup", "day", "soup")]
    out = run(models, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    assert out.exit_code == 1, out.exception
    assert [row["line"] for row in read_rows(tmp_path / "out.jsonl")] == [1, 3]
    assert read_rows(tmp_path / "out.jsonl.errors.jsonl") == [
        {"line": 2, "error": "ZeroDivisionError: division by zero"}
    ]


def test_a_row_whose_finished_texts_cannot_be_read_fails_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = texts._judged_alone

    def stumbling(lm: SteerableModel, end: Finished) -> Finished:
        return 1 / 0 if end.request.seed == 7 else judge(lm, end)  # type: ignore[return-value]

    monkeypatch.setattr(texts, "_judged_alone", stumbling)
    rows = [{"prompt": "we", "keywords": ["soup"], "seed": seed} for seed in (6, 7, 8)]
    out = run(models, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    assert out.exit_code == 1, out.exception
    assert [row["line"] for row in read_rows(tmp_path / "out.jsonl")] == [1, 3]
    (error,) = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert error == {"line": 2, "error": "ZeroDivisionError: division by zero"}


def test_a_csv_that_is_not_utf_8_is_refused_in_a_sentence_that_names_it(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"prompt,keywords\nwe,soup\ncaf\xe9,soup\n")
    out = run(models, tmp_path / "in.csv", tmp_path / "out.jsonl")
    assert out.exit_code == 2
    assert f"{tmp_path}/in.csv cannot be read as CSV" in out.stderr
    assert "0xe9" in out.stderr
    assert out.stderr.count("\n") == 1


def test_the_lines_of_a_csv_are_counted_with_its_blank_ones_and_those_within_cells(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('prompt,id\n\n\nwe,1\n"the\nfood",2\n\nwe,3,x\nwe\n')
    lines = list(read_lines(tmp_path / "in.csv", ".csv"))
    assert [(line.number, line.line) for line in lines] == [(0, 4), (1, 5), (2, 8), (3, 9)]
    assert [line.fields for line in lines] == [
        {"prompt": "we", "id": "1"},
        {"prompt": "the\nfood", "id": "2"},
        None,
        {"prompt": "we"},
    ]
    assert lines[2].error == "the row has 1 more cells than the file has columns"


def test_csv_and_parquet_say_the_same_as_json_lines(models: Path, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "the food", "keywords": ["soup", "rain"], "seed": 3, "metadata": {"x": 1}},
        {"id": "c", "prompt": "we", "keywords": ["soup"], "whole_sentences": True, "weights": {"keywords": 2.5}},
        {"id": "b", "prompt": "we, they", "avoid": ["day"], "tell": False, "knobs": {"width": 2}},
    ]
    write_rows(tmp_path / "in.jsonl", rows)
    with (tmp_path / "in.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["id", "prompt", "keywords", "avoid", "seed", "whole_sentences", "weights", "tell", "knobs", "metadata"]
        )
        table.writerow(["a", "the food", "soup, rain", "", "3", "", "", "", "", '{"x": 1}'])
        table.writerow(["c", "we", "soup", "", "", "true", '{"keywords": 2.5}', "", "", ""])
        table.writerow(["b", "we, they", "", '["day"]', "", "", "", "false", '{"width": 2}', ""])
    types = {"id": pa.string(), "prompt": pa.string(), "seed": pa.int64(), "tell": pa.bool_()}
    types |= {"keywords": pa.list_(pa.string()), "avoid": pa.list_(pa.string())}
    types |= {
        "whole_sentences": pa.bool_(),
        "weights": pa.struct([("keywords", pa.float64()), ("topic", pa.float64())]),
    }
    types |= {"knobs": pa.struct([("width", pa.int64())]), "metadata": pa.struct([("x", pa.int64())])}
    whole = pa.Table.from_pylist(rows, pa.schema(list(types.items())))
    pq.write_table(whole.append_column("similar", [["", None, ""]]), tmp_path / "in.parquet")
    found = []
    for kind in ("jsonl", "csv", "parquet"):
        out = run(models, tmp_path / f"in.{kind}", tmp_path / f"{kind}.jsonl")
        assert out.exit_code == 0, out.stderr
        found.append([{**row, "line": None} for row in read_rows(tmp_path / f"{kind}.jsonl")])
    assert found[0] == found[1] == found[2]


def test_the_output_can_be_csv_or_parquet(models: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "the food", "keywords": ["soup"], "metadata": [1]},
        {"prompt": "we", "keywords": ["rain"], "id": 4},
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    for kind in ("jsonl", "csv", "parquet"):
        assert run(models, source, tmp_path / f"out.{kind}").exit_code == 0
    as_json = read_rows(tmp_path / "out.jsonl")
    with (tmp_path / "out.csv").open(newline="") as file:
        as_csv = list(csv.DictReader(file))
    as_parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    for one, cells, columns in zip(as_json, as_csv, as_parquet, strict=True):
        assert one["text"] == cells["text"] == columns["text"]
        assert one["perplexity"] == float(cells["perplexity"]) == columns["perplexity"]
        assert one["constraints"] == json.loads(cells["constraints"]) == json.loads(columns["constraints"])
    assert (as_csv[0]["metadata"], as_csv[1]["id"]) == ("[1]", "4")


def test_openais_batch_lines_are_answered_in_its_shape(models: Path, tmp_path: Path) -> None:
    def line(name: str, url: str = "/v1/completions", **body: object) -> dict[str, object]:
        body = {"model": "lm", "max_tokens": 5, "slalom": {"keywords": ["soup"]}} | body
        return {"custom_id": name, "method": "POST", "url": url, "body": body}

    rows = [
        line("a", prompt="we", n=2, seed=3),
        line("b", prompt="the food", logprobs=5),
        line("c", prompt="we", model="gpt-4"),
        line("d", prompt=["we", "they"]),
        line("e", "/v1/chat/completions", messages=[{"role": "user", "content": "hello"}]),
        line("f", "/v1/embeddings", prompt="we"),
        line("g", prompt="we", stream=True),
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert run(models, source, tmp_path / "out.jsonl").exit_code == 1
    (one,) = read_rows(tmp_path / "out.jsonl")
    body = one["response"].pop("body")
    assert one == {
        **{"id": "batch_req_1", "custom_id": "a", "error": None},
        "response": {"status_code": 200, "request_id": "req_1"},
    }
    assert (body["object"], body["model"], body["created"]) == ("text_completion", "lm", 0)
    assert [(choice["index"], choice["slalom"]["seed"]) for choice in body["choices"]] == [(0, 3), (1, 4)]
    assert body["usage"]["completion_tokens"] == 10
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    plain = write_rows(
        tmp_path / "plain.jsonl", [{"prompt": "we", "keywords": ["soup"], "length": 5, "samples": 2, "seed": 3}]
    )
    run(models, plain, tmp_path / "texts.jsonl")
    assert [choice["text"] for choice in body["choices"]] == [
        row["text"] for row in read_rows(tmp_path / "texts.jsonl")
    ]
    errors = read_rows(tmp_path / "out.jsonl.errors.jsonl")
    assert [error["id"] for error in errors] == list("bcdefg")
    for error, word in zip(errors, ["logprobs", "gpt-4", "2 prompts", "template", "url", "stream"], strict=True):
        assert word in error["error"]


def test_chats_are_answered_in_both_forms(models: Path, tmp_path: Path) -> None:
    lm = tiny_lm("llama-tied")
    lm.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    lm.model.save_pretrained(tmp_path / "chat")
    lm.tokenizer.save_pretrained(tmp_path / "chat")
    messages = [{"role": "user", "content": "the food"}]
    body = {"model": "chat", "messages": messages, "max_completion_tokens": 4, "slalom": {"keywords": ["soup"]}}
    rows = [
        {"messages": messages, "keywords": ["soup"], "length": 4},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body},
    ]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    assert slalom("batch", f"{source}", f"{out}", "--model", f"{tmp_path}/chat", *OPTIONS).exit_code == 0
    plain, openai = read_rows(out)
    (choice,) = openai["response"]["body"]["choices"]
    assert choice["message"] == {"role": "assistant", "content": plain["text"], "refusal": None}
    assert openai["response"]["body"]["object"] == "chat.completion"


def test_openais_client_reads_the_answers_as_its_own(models: Path, tmp_path: Path) -> None:
    types = pytest.importorskip("openai.types")
    body = {"model": "lm", "prompt": "we", "max_tokens": 5, "slalom": {"keywords": ["soup"]}}
    rows = [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}]
    run(models, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl")
    (one,) = read_rows(tmp_path / "out.jsonl")
    assert types.Completion.model_validate(one["response"]["body"], strict=True).choices[0].text


def test_a_column_nobody_knows_is_refused_at_once(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("prompt,colour\nwe,red\n")
    out = run(models, tmp_path / "in.csv", tmp_path / "out.csv", "--keywords", "soup")
    assert out.exit_code == 2
    assert "'colour'" in out.stderr
    assert not (tmp_path / "out.csv").exists()


def test_two_columns_of_a_name_are_refused_at_once(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("prompt,keywords,prompt\nwe,soup,they\n")
    out = run(models, tmp_path / "in.csv", tmp_path / "out.csv")
    assert out.exit_code == 2
    assert "has 2 columns 'prompt'; give each field one" in out.stderr


def test_a_job_that_could_never_end_is_refused_before_it_begins(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "run_local", lambda *_: pytest.fail("the job was begun"))
    plain = {"prompt": "we", "keywords": ["soup"]}
    source = write_rows(tmp_path / "in.jsonl", [plain, {"custom_id": "a", "body": {}}])
    assert f"let {tmp_path}/out.csv end in .jsonl" in run(models, source, tmp_path / "out.csv").stderr
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    write_rows(source, [plain])
    out = run(models, source, tmp_path / "out.parquet")
    assert out.exit_code == 2
    assert "Parquet needs pyarrow: pip install 'slalom[batch]'" in out.stderr


def test_rows_can_be_piped_in_and_texts_out(models: Path, tmp_path: Path) -> None:
    rows = mixed_rows(models, 4)
    source = write_rows(tmp_path / "in.jsonl", rows)
    run(models, source, tmp_path / "out.jsonl")
    piped = run(models, "-", "-", stdin=source.read_text() + '{"prompt": "we"}\n')
    assert piped.exit_code == 1
    assert piped.stdout == (tmp_path / "out.jsonl").read_text()
    assert "line 5: " in piped.stderr


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [
        ("missing.jsonl", "out.jsonl", "there is no file"),
        ("in.txt", "out.jsonl", ".jsonl, .csv, .parquet"),
        ("in.jsonl", "out.txt", ".jsonl, .csv, .parquet"),
        ("in.jsonl", "in.jsonl", "is the input"),
        ("empty.jsonl", "out.jsonl", "no rows"),
        ("in.jsonl", "there.jsonl", "--restart"),
        ("openai.jsonl", "out.csv", ".jsonl"),
    ],
)
def test_a_bad_command_is_one_sentence_and_writes_nothing(
    models: Path, tmp_path: Path, source: str, out: str, said: str
) -> None:
    write_rows(tmp_path / "in.jsonl", [{"prompt": "we", "keywords": ["soup"]}])
    write_rows(tmp_path / "openai.jsonl", [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}])
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "there.jsonl").write_text("precious")
    before = sorted(tmp_path.iterdir())
    refused = run(models, tmp_path / source, tmp_path / out)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.jsonl").read_text() == "precious"


def test_a_wrong_option_is_refused_before_anything_is_loaded(models: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "we"}])
    out = run(models, source, tmp_path / "out.jsonl", "--sentiment", "sad")
    assert out.exit_code == 2
    assert "sentiment is 'sad'" in out.stderr


def test_two_processes_never_write_the_same_output(models: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", mixed_rows(models, 2))
    with FileLock(tmp_path / ".out.jsonl.lock"):
        out = run(models, source, tmp_path / "out.jsonl")
    assert out.exit_code == 2
    assert "another process" in out.stderr


def test_rows_are_read_when_there_is_room_and_share_constraints(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "OPEN", 4)
    read, most, built = 0, 0, []
    build = texts._constraint
    monkeypatch.setattr(texts, "_constraint", lambda key: built.append(key) or build(key))
    writer = TextWriter(Work({"model": f"{models}/lm", "engine": "torch"}, {"length": 3, "steps": 2}))

    def lines():  # type: ignore[no-untyped-def]
        nonlocal read
        for number in range(30):
            read += 1
            yield Line(number, number + 1, {"prompt": "we", "keywords": ["soup"], "seed": number})

    done = 0
    for some in writer.write(lines()):
        most = max(most, read - done)
        done += len(some)
    assert done == 30
    assert most <= 8
    assert len(built) == 1


def test_the_progress_line_says_pace_time_left_and_shares_of_this_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = Count(rows=100, done=10, texts=10, satisfied=10)
    now = Count(rows=100, done=40, failed=1, texts=40, satisfied=30)
    assert command._pace(begun, begun, time.perf_counter()) == "loading"
    line = command._pace(now, begun, time.perf_counter() - 3600)
    assert line == "0.0 texts/s, 2:00:00 left, 75% satisfied, 1 failed"
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    with command._progress() as watch:
        watch(begun)
        watch(now)
    assert "left, 75% satisfied, 1 failed" in capsys.readouterr().err


def test_no_more_rows_are_read_while_many_are_under_way(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "OPEN", 4)
    read = 0
    writer = TextWriter(Work({"model": f"{models}/lm", "engine": "torch"}, {"length": 3, "steps": 24, "until": 1.0}))

    def lines():  # type: ignore[no-untyped-def]
        nonlocal read
        for number in range(12):
            read += 1
            yield Line(number, number + 1, {"prompt": "we", "keywords": ["kayaks"], "seed": number})

    done, most = 0, 0
    for some in writer.write(lines()):
        most = max(most, read - done)
        done += len(some)
    assert done == 12
    assert most <= 4
