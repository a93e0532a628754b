"""A search reads its space strictly, sees validation data alone, and goes on where it stopped."""

from pathlib import Path

import pytest

import perdure
from perdure.errors import PerdureError, RunLocked, UnknownName, UsageError, WrongValue
from perdure.lab import search as lab
from perdure.lab.execute.job import Event, run_job
from perdure.lab.run import run_spec as run
from perdure.lab.search import Range, Trial, make_search, parse_range, read_trials
from perdure.lab.spec import spec

pytest.importorskip("optuna", reason="a search needs optuna")


class Here:
    """Does jobs in this process, one after another."""

    def __init__(self, limit=10**9):
        self.done, self.limit = 0, limit

    def do(self, jobs):
        for number, job in enumerate(jobs):
            if self.done == self.limit:
                raise KeyboardInterrupt
            self.done += 1
            events = []
            run_job(job, lambda kind, facts, events=events: events.append((kind, facts)))
            yield from (Event(number, kind, facts) for kind, facts in events)

    def stop(self):
        raise AssertionError("nobody asked for it")


SPACE = {"method": "gpm", "benchmark": "synthetic", "space": ["threshold=0.5..0.99"], "seeds": [1, 2]}
SHORT = {"tasks": 1, "plan": {"epochs": 1}}


@pytest.fixture
def wanted():
    return make_search(**SPACE, **SHORT)


@pytest.fixture
def search(monkeypatch):
    """Search with an executor of ours; gives the trials of this call."""

    def search(out, trials, executor=None, at_once=2, **other):
        monkeypatch.setattr(lab, "make_executor", lambda *_, **__: (executor or Here(), None))
        ended = []
        keep = lambda news: ended.append(news) if isinstance(news, Trial) else None  # noqa: E731
        result = lab.search(**{**SPACE, **SHORT, **other}, trials=trials, out=out, at_once=at_once, callback=keep)
        assert {trial.number for trial in ended} <= {trial.number for trial in result.trials}
        return ended

    return search


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("radius=0.01..0.5", Range("radius", 0.01, 0.5)),
        ("rho=0.01..0.5", Range("radius", 0.01, 0.5)),
        ("ρ=0.01..0.5:log", Range("radius", 0.01, 0.5, log=True)),
        ("samples=10..200", Range("samples", 10, 200, whole=True)),
        ("mix_weight=1e-4..1:log", Range("mix_weight", 1e-4, 1, log=True)),
        ("plan.rate=0.01..0.1:log", Range("plan.rate", 0.01, 0.1, log=True)),
        ("plan.lr=0.01..0.1:log", Range("plan.rate", 0.01, 0.1, log=True)),
        ("bs=16..32", Range("plan.batch", 16, 32, whole=True)),
        ("plan.batch=16,32", Range("plan.batch", choices=("16", "32"))),
        ("plan.weight_decay=1e-5..0.01:log", Range("plan.weight_decay", 1e-5, 0.01, log=True)),
        ("wd=1e-5..0.01:log", Range("plan.weight_decay", 1e-5, 0.01, log=True)),
        ("plan.opt=sgd,adamw", Range("plan.optimizer", choices=("sgd", "adamw"))),
        ("variant=released,paper", Range("variant", choices=("released", "paper"))),
        ("phi_cap=0.1..1", Range("phi_cap", 0.1, 1)),
    ],
)
def test_spaces(text, found):
    assert parse_range(text, "rcl") == found


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("radios=0.1..1", UnknownName, "did you mean radius"),
        ("omega=0.1..1", UnknownName, "unknown value of rcl to search"),
        ("plan.lrr=0.1..1", UnknownName, "unknown plan option 'lrr'; did you mean lr"),
        ("plan.weight_dacay=0.1..1", UnknownName, "did you mean weight_decay"),
        ("radius", WrongValue, "is no range"),
        ("radius=0.1", WrongValue, "is no range"),
        ("radius=1..0.1", WrongValue, "the lower one"),
        ("radius=1..1", WrongValue, "the lower one"),
        ("radius=0..1:log", WrongValue, "above 0 for :log"),
        ("radius=a..b", WrongValue, "numbers"),
    ],
)
def test_spaces_asked_wrongly(text, kind, message):
    with pytest.raises(kind, match=message):
        parse_range(text, "rcl")


@pytest.mark.parametrize("space", [[], ["threshold=0.5..1.5"], ["threshold=0.1..0.2", "epsilon=0.1..0.3"]])
def test_searches_asked_wrongly_fail_before_anything_runs(space):
    with pytest.raises(UsageError):
        make_search("gpm", "synthetic", space, [1])


@pytest.mark.parametrize("space", ["ua_in=both,nonsense", "samples=10..20.5", "plan.batch=16,0"])
def test_every_choice_and_both_ends_are_checked_before_anything_runs(space):
    with pytest.raises(WrongValue, match="is not allowed"):
        make_search("rcl", "synthetic", ["radius=0.01..0.5", space], [1])


@pytest.mark.parametrize("seeds", [[1, 1], []])
def test_each_seed_is_named_once(seeds):
    with pytest.raises(WrongValue, match="name at least one, and each once"):
        make_search("gpm", "synthetic", ["threshold=0.5..0.9"], seeds)


def test_scores_are_means_over_seeds_of_validation_accuracy(search, wanted, tmp_path):
    trials = search(tmp_path, 3)
    assert len(trials) == 3
    best = read_trials(wanted, tmp_path)[0]
    assert best.score == max(trial.score for trial in trials)
    expected = []
    for seed in (1, 2):
        asked = spec("gpm", "synthetic", tasks=1, seed=seed, values=best.values, plan={"epochs": 1}, judged_on="valid")
        expected.append(run(asked, out=tmp_path)["acc"])
    assert best.score == pytest.approx(sum(expected) / 2)


def test_test_data_change_nothing(search, tmp_path, monkeypatch):
    """The same search on a stream whose test images and labels are something else."""
    from dataclasses import replace

    from perdure.data.benchmarks.synthetic import synthetic
    from perdure.types import Split, Stream

    before = [trial.score for trial in search(tmp_path / "a", 2)]

    def other_test_data(*, seed, tasks=None):
        stream = synthetic(seed=seed, tasks=tasks)
        wrong = [replace(t, test=Split(t.test.x.flip(0), t.test.y * 0, t.test.mean, t.test.std)) for t in stream]
        return Stream("synthetic", wrong)

    monkeypatch.setattr("perdure.data.benchmarks.synthetic.synthetic", other_test_data)
    assert [trial.score for trial in search(tmp_path / "b", 2)] == before


def test_a_search_goes_on_and_repeats_no_run(search, tmp_path):
    search(tmp_path, 2)
    assert search(tmp_path, 2) == []  # so many there are already
    assert len(search(tmp_path, 3)) == 1
    # Another space is another search.
    other = make_search("gpm", "synthetic", ["threshold=0.6..0.99"], [1, 2], tasks=1, plan={"epochs": 1})
    assert read_trials(other, tmp_path) == []


def test_a_search_that_was_cut_off_asks_again(search, wanted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, 4, Here(limit=3))
    runs = set(tmp_path.rglob("record.json"))
    assert len(runs) == 3
    trials = search(tmp_path, 4)
    assert len(read_trials(wanted, tmp_path)) == 4
    assert len(trials) == 4
    # The runs that were done then are those of the first trials now.
    assert len(set(tmp_path.rglob("record.json"))) == 8
    assert runs <= set(tmp_path.rglob("record.json"))


def test_a_failed_run_fails_its_trial_alone(search, tmp_path):
    other = {"method": "finetune", "space": ["plan.lr=1e30,0.01"], "seeds": [1], "net": "mlp"}
    trials = search(tmp_path, 4, at_once=1, **other)
    failed = [trial for trial in trials if trial.score is None]
    assert {trial.values["plan.rate"] for trial in failed} == {"1e30"}
    assert all("lower the learning rate" in trial.error for trial in failed)
    assert len(failed) == 1
    wanted = make_search("finetune", "synthetic", other["space"], [1], network="mlp", **SHORT)
    assert read_trials(wanted, tmp_path)[-1].score is None
    assert len(read_trials(wanted, tmp_path)) == 2


def test_what_is_searched_replaces_what_is_given_under_any_name():
    wanted = make_search(
        "rcl", "synthetic", ["plan.rate=0.1,0.2", "radius=0.1,0.2"], [1], plan={"lr": 1}, values={"rho": 1}
    )
    (one,) = wanted.specs({"plan.rate": 0.2, "radius": 0.1})
    assert (one.plan.rate, one.values["radius"]) == (0.2, 0.1)


def test_the_name_of_a_search_stays_what_it_is(wanted):
    assert wanted.digest() == "3054f26c45146c60"


def test_the_result_as_data(search, tmp_path, monkeypatch):
    search(tmp_path, 2, Pretending())
    monkeypatch.setattr(lab, "make_executor", lambda *_, **__: (Pretending(), None))
    result = perdure.search(**SPACE, **SHORT, trials=2, out=tmp_path)
    assert result.best == result.trials[0]
    assert result.best.score >= result.trials[1].score
    assert result.plain()["search"] == result.search.digest()
    assert [set(trial) for trial in result.plain()["trials"]] == [{"number", "values", "score", "error"}] * 2


def test_a_damaged_search_is_one_line(search, wanted, tmp_path):
    search(tmp_path, 1)
    (path,) = (tmp_path / "searches").glob("*.db")
    Path(path).write_bytes(b"not a database" * 100)
    with pytest.raises(PerdureError, match=r"not a readable search .* move it away to begin anew"):
        read_trials(wanted, tmp_path)


class Pretending:
    """Does nothing and says that all is done; calls back before each round."""

    def __init__(self, first=lambda: None):
        self.rounds, self.first = [], first

    def stop(self):
        raise AssertionError("nobody asked for it")

    def do(self, jobs):
        self.first()
        self.rounds.append([job.spec for job in jobs])
        for number, job in enumerate(jobs):
            yield Event(number, "done", {"record": {"acc": 100.0 * job.spec.values["threshold"] + job.spec.seed}})


def test_equal_proposals_of_a_round_share_their_runs(search, tmp_path):
    """Two workers with one run would wait for each other, and one of them fail."""
    executor = Pretending()
    trials = search(tmp_path, 12, executor, at_once=6, space=["threshold=0.5,0.50,0.9"])
    assert [trial.score for trial in trials] == [100 * float(trial.values["threshold"]) + 1.5 for trial in trials]
    for specs in executor.rounds:
        assert len({one.digest() for one in specs}) == len(specs) <= 4


def test_where_all_ranges_are_lists_each_combination_is_tried_once(search, tmp_path):
    grid = ["threshold=0.5,0.7,0.9", "samples=10,20"]
    wanted = [(threshold, samples) for threshold in ("0.5", "0.7", "0.9") for samples in ("10", "20")]
    tried = [tuple(trial.values.values()) for trial in search(tmp_path, 4, Pretending(), space=grid)]
    assert tried == wanted[:4]
    tried += [tuple(trial.values.values()) for trial in search(tmp_path, 20, Pretending(), space=grid)]
    assert tried == wanted
    assert search(tmp_path, 20, Pretending(), space=grid) == []
    mixed = search(tmp_path, 5, Pretending(), space=["threshold=0.5..0.9", "samples=10,20"])
    assert len(mixed) == 5  # a range has no end


def test_a_second_process_on_a_search_changes_nothing(search, wanted, tmp_path):
    """Neither by trying to search, nor by reading what there is."""
    messages = []

    def meanwhile():
        with pytest.raises(RunLocked) as caught:
            search(tmp_path, 4, Pretending())
        messages.append(str(caught.value))
        read_trials(wanted, tmp_path)

    assert len(search(tmp_path, 4, Pretending(meanwhile))) == 4
    assert len(messages) == 2
    assert "wait for it, or stop it" in messages[0]
    assert [trial.number for trial in sorted(read_trials(wanted, tmp_path), key=lambda trial: trial.number)] == [
        0,
        1,
        2,
        3,
    ]


def test_reading_results_makes_no_files_and_asks_nothing_again(search, wanted, tmp_path):
    assert read_trials(wanted, tmp_path / "nowhere") == []
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, 2, Here(limit=0))
    (path,) = (tmp_path / "searches").glob("*.db")
    before = path.read_bytes()
    assert read_trials(wanted, tmp_path) == []
    assert path.read_bytes() == before


@pytest.mark.thorough
def test_a_search_that_was_cut_off_twice_goes_on(search, wanted, tmp_path):
    """The second time, one of the trials of the first time still waits to be asked again."""
    for at_once in (3, 1):
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path, 3, Here(limit=0), at_once=at_once)
    assert len(search(tmp_path, 3, Pretending())) == 3
    assert len(read_trials(wanted, tmp_path)) == 3


def test_a_store_that_cannot_be_written_is_one_line(search, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PerdureError, match=r"cannot write .* choose another place with --out"):
        search(tmp_path / "file", 1, Pretending())
    (tmp_path / "searches").write_text("")
    with pytest.raises(PerdureError, match=r"cannot write .*searches"):
        search(tmp_path, 1, Pretending())


@pytest.mark.parametrize("root", [None, "data"])
def test_jobs_of_a_search_have_its_places(root, tmp_path, search):
    seen = []

    class Seeing(Here):
        def do(self, jobs):
            seen.extend((job.out, job.root, job.device) for job in jobs)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, 1, Seeing(), at_once=1, root=root and Path(root), device="cuda:1")
    assert seen == [(str(tmp_path), root, "cuda:1")] * 2
