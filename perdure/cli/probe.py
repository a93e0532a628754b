"""`perdure probe`: what a finished run is worth under attack and corruption; how flat, how spread, how full it is."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from perdure import registry
from perdure.cli.board import lasting
from perdure.cli.options import AsJson, Device, Root, guarded, stderr, stdout
from perdure.errors import CorruptFile, PerdureError, UnknownName, WrongValue
from perdure.report.probes import Result, renderer
from perdure.report.stats import labels

if TYPE_CHECKING:
    from perdure.lab.probe_run import Asked, Opened
    from perdure.lab.progress import Bar

Out = Annotated[Path, typer.Option(help="Where records are.")]


def join(app: typer.Typer) -> None:
    """Add this verb to the command line."""
    app.command("probe")(guarded(probe))


@dataclass(frozen=True)
class Run:
    """A finished run, and how it is called among the others."""

    path: Path
    record: dict[str, Any]
    label: str


def probe(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... PROBE...",
            help="Runs by path, by the beginning of a hash, or by method and benchmark (e.g. rcl six); then probes, "
            "see `perdure ls probes` and `perdure show PROBE`.",
        ),
    ],
    wishes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="[PROBE.]NAME=VALUE", help="Set a value of the probes, e.g. strengths=2/255,8/255."
        ),
    ] = [],  # noqa: B006 — typer reads it, nobody changes it
    dry: Annotated[bool, typer.Option("--dry", help="Only say how long it will take.")] = False,
    root: Root = None,
    out: Out = Path("runs"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure finished runs. What was measured before is not measured again; several runs are compared."""
    from perdure.lab.probe_run import measure
    from perdure.lab.spec import assignments

    names = list(dict.fromkeys(word for word in words if word in registry.probes))
    runs = _runs([word for word in words if word not in registry.probes], out)
    wanted = _wanted(names, assignments(wishes))
    if dry:
        _dry(runs, wanted, root, device, as_json)
        return
    alone = [one for one in wanted if not registry.probes.load(one.name).across]
    together = [one for one in wanted if one not in alone]
    for run in runs if alone else ():
        with _opened([run], root, device) as ((opened,), callback):
            measure(opened, alone, callback)
    found = {one.key: [_result(run.path / "probes" / f"{one.key}.json", run.label) for run in runs] for one in alone}
    pictures = []
    for one in alone:
        for run, result in zip(runs, found[one.key], strict=True):
            pictures += _drawn(one.name, [result], run.path / "probes" / f"{one.key}.png")
        if len(runs) > 1:
            pictures += _drawn(one.name, found[one.key], _compared(one, runs).with_suffix(".png"))
    for one in together:
        place = _compared(one, runs)
        found[one.key] = [_across(runs, one, root, device, place)]
        pictures += _drawn(one.name, found[one.key], place.with_suffix(".png"))
    if as_json:
        told = {key: [_plain(result) for result in results] for key, results in found.items()}
        print(json.dumps({"probes": told, "pictures": [str(place) for place in pictures]}, ensure_ascii=False))
        return
    for one in wanted:
        _print(one.name, found[one.key])
    for place in pictures:
        stdout.print(f"picture: {place}", soft_wrap=True, markup=False)


# --- what is asked for ---


def _runs(words: Sequence[str], out: Path) -> list[Run]:
    """Finished runs by path or hash, and those of the methods and benchmarks that are named."""
    from perdure.lab import index

    kinds = [word for word in words if word in registry.methods or word in registry.benchmarks]
    paths = [_find(word, out) for word in words if word not in kinds]
    if kinds:
        paths += [out / row.path for row in index.chosen(index.runs(out), [*kinds, "finished"])]
    records = {path: _record(path) for path in dict.fromkeys(paths)}
    if not records:
        what = f"no finished run of {' and '.join(kinds)} in {out}" if kinds else "name at least one run"
        raise WrongValue(f"{what}; `perdure ls runs --out {out}` lists those there are")
    return [Run(*pair, label) for pair, label in zip(records.items(), _labels(records), strict=True)]


def _find(word: str, out: Path) -> Path:
    from perdure.lab import index

    try:
        return index.find(out, word)
    except WrongValue:
        if "/" in word or set(word) <= set("0123456789abcdef"):
            raise
        raise UnknownName("probe or run", word, registry.probes) from None


def _record(path: Path) -> dict[str, Any]:
    from perdure.lab.store import read_record

    try:
        record = read_record(path, thorough=True)
    except CorruptFile as error:
        raise PerdureError(f"{error}; run it again") from None
    if record is None:
        raise PerdureError(f"{path}: not finished yet; the command that began it goes on with it")
    return record


def _labels(records: dict[Path, dict[str, Any]]) -> list[str]:
    """What tells runs apart: method, values where they differ, seed; the hash where that is not enough."""
    told = [
        f"{record['method']}{f' ({label})' if label else ''}, seed {record['seed']}"
        for record, label in zip(records.values(), labels(list(records.values())), strict=True)
    ]
    return [
        label if told.count(label) == 1 else f"{label}, {path.name[:6]}"
        for label, path in zip(told, records, strict=True)
    ]


def _wanted(names: Sequence[str], wishes: dict[str, str]) -> "list[Asked]":
    """Probes with their values: `steps=50` goes to all that have it, `pgd.steps=50` to one."""
    from perdure.lab.probe_run import asked
    from perdure.schema import values_of

    if not names:
        raise WrongValue("name at least one probe; `perdure ls probes` lists them")
    known = {name: values_of(registry.probes.load(name)) for name in names}
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    for wish, value in wishes.items():
        before, dot, after = wish.partition(".")
        if dot and before not in known:
            raise UnknownName("probe among those named", before, known)
        takers = [before] if dot else [name for name in names if wish in known[name]]
        if not takers:
            raise UnknownName(f"value of {' or '.join(names)}", wish, {key for own in known.values() for key in own})
        for name in takers:
            given[name][after if dot else wish] = value
    return [asked(name, given[name]) for name in names]


# --- doing it ---


@contextmanager
def _opened(runs: Sequence[Run], root: Path | None, device: str) -> "Iterator[tuple[list[Opened], Bar]]":
    """Runs, held against others, each under the name that tells it apart, with one progress on standard error."""
    from perdure.lab.build import resolve_device
    from perdure.lab.probe_run import open_run
    from perdure.lab.progress import Bar, Dial
    from perdure.lab.store import hold

    name = runs[0].label if len(runs) == 1 else f"{len(runs)} runs"
    with ExitStack() as held:
        for run in runs:
            held.enter_context(hold(_store(run.path), run.path))
        bar = held.enter_context(Bar(f"{name}, once more", len(runs[0].record["accuracy_matrix"]), stderr))
        dial = Dial(bar.progress, f"{name}: ")
        opened = [open_run(run.path, run.record, root, resolve_device(device), dial) for run in runs]
        named = [replace(o, subject=replace(o.subject, name=r.label)) for o, r in zip(opened, runs, strict=True)]
        yield named, bar


def _store(path: Path) -> Path:
    """The store that a run lies in, wherever the word came from that named it."""
    return path.parents[2]


def _across(runs: Sequence[Run], one: "Asked", root: Path | None, device: str, place: Path) -> Result:
    """A probe of several runs together; kept beside the runs, under the name of all of them."""
    import perdure.lab.probe_run as lab
    from perdure.lab.store import read_measured

    models = [run.record["files"]["model.safetensors"] for run in runs]
    known = read_measured(place)
    if known is None or known["models"] != models:
        with _opened(_two_or_more(runs, one), root, device) as (opened, _):
            subjects = [run.subject for run in opened]
            probe = one.make(opened[0].stream)
            pace = lab.Pace(subjects[0])
            found, facts = lab.timed(
                one.name,
                probe.cost_across(subjects),
                pace,
                opened[0].gauge,
                lambda: probe.measure_across(subjects),
            )
        runs_told = [{"label": run.label, "path": str(run.path)} for run in runs]
        lab.keep(place.parent, replace(one, key=place.stem), found, {**facts, "models": models, "runs": runs_told})
    return _result(place, " | ".join(run.label for run in runs))


def _two_or_more(runs: Sequence[Run], one: "Asked") -> Sequence[Run]:
    if len(runs) < 2:
        raise WrongValue(f"{one.name} compares runs: name two or more")
    return runs


# --- what it came to ---


def _result(place: Path, label: str) -> Result:
    from safetensors.numpy import load_file

    from perdure.lab.store import read_measured

    content = read_measured(place)
    if content is None:  # it was written a moment ago
        raise PerdureError(f"{place}: changed meanwhile; give the same command again")
    arrays = load_file(place.with_suffix(".safetensors")) if content["arrays"] else {}
    about = ("probe", "values", "headline", "arrays")
    return Result(
        label, content["values"], {n: v for n, v in content.items() if n not in about}, arrays, content["headline"]
    )


def _plain(result: Result) -> dict[str, Any]:
    return {"run": result.label, "values": result.values, "headline": result.headline, **result.figures}


def _compared(one: "Asked", runs: Sequence[Run]) -> Path:
    """Where what compares several runs is kept, in the store of the first."""
    names = blake2b(" ".join(run.path.name for run in runs).encode(), digest_size=4).hexdigest()
    return _store(runs[0].path) / "compared" / f"{one.key}-{names}.json"


def _drawn(name: str, results: Sequence[Result], place: Path) -> list[Path]:
    """The picture's place, if there is one."""
    from perdure.lab.store import write
    from perdure.report.figures import png

    where = renderer(name)
    if where is None:
        return []
    try:
        write(place, png(lambda figure: where.draw(figure, results)))
    except PerdureError as error:  # the figures are worth showing without pictures
        stderr.print(f"no picture of {name}: {error}", soft_wrap=True, markup=False)
        return []
    return [place]


def _print(name: str, results: Sequence[Result]) -> None:
    where = renderer(name)
    for part in where.tables(results) if where is not None else [_headlines(name, results)]:
        stdout.print(part, markup=False, soft_wrap=isinstance(part, str))
    stdout.print()


def _headlines(name: str, results: Sequence[Result]) -> Table:
    """Of a probe that has no room in the report."""
    table = Table("run", *results[0].headline, title=name, title_justify="left")
    for result in results:
        table.add_row(result.label, *(f"{value:.4g}" for value in result.headline.values()))
    return table


# --- what it would cost ---


def _dry(runs: Sequence[Run], wanted: "Sequence[Asked]", root: Path | None, device: str, as_json: bool) -> None:
    """How long each probe of each run would take, from the pace of a batch here; what is measured is not counted."""
    rows = [row for run in runs for row in _costs(run, wanted, root, device)]
    rows += [_cost_across(runs, one, root, device) for one in wanted if registry.probes.load(one.name).across]
    if as_json:
        print(json.dumps({"probes": rows, "seconds": sum(row["seconds"] for row in rows)}, ensure_ascii=False))
        return
    table = Table("run", "probe", "images forward", "forward and back", "about", title_justify="left")
    for row in rows:
        counts = (f"{row['forwards']:,}", f"{row['gradients']:,}", row["note"] or lasting(row["seconds"]))
        table.add_row(row["run"], row["probe"], *counts)
    stdout.print(table)
    stdout.print(f"together about {lasting(sum(row['seconds'] for row in rows))} here", soft_wrap=True)


def _costs(run: Run, wanted: "Sequence[Asked]", root: Path | None, device: str) -> Iterator[dict[str, Any]]:
    import perdure.lab.probe_run as lab
    from perdure.lab.snapshots import likely
    from perdure.lab.store import read_probes

    known = read_probes(run.path, run.record)
    with _opened([run], root, device) as ((opened,), _):
        pace = lab.Pace(opened.subject)
        rows = run.record["accuracy_matrix"]
        subject = replace(opened.subject, stages=likely(opened.subject.method, rows), clean=opened.stream.tasks)
        for one in wanted:
            probe = one.make(opened.stream)
            if probe.across:
                continue
            work = probe.cost(subject)
            seconds = 0.0 if one.key in known else pace.seconds(work)
            note = "measured already" if one.key in known else ""
            yield {"run": run.label, "probe": one.name, **asdict(work), "seconds": seconds, "note": note}


def _cost_across(runs: Sequence[Run], one: "Asked", root: Path | None, device: str) -> dict[str, Any]:
    import perdure.lab.probe_run as lab

    with _opened(_two_or_more(runs, one), root, device) as (opened, _):
        subjects = [run.subject for run in opened]
        work = one.make(opened[0].stream).cost_across(subjects)
        seconds = lab.Pace(subjects[0]).seconds(work)
    return {"run": "all together", "probe": one.name, **asdict(work), "seconds": seconds, "note": ""}
