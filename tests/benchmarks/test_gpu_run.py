"""benchmarks/gpu/run.py, as far as it goes without a GPU."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"
sys.path.insert(0, str(SCRIPT.parent))
import goals  # noqa: E402
import machine  # noqa: E402
import parts  # noqa: E402
import run as gpu_run  # noqa: E402
import workers  # noqa: E402
from results import Results  # noqa: E402
from tables import remarks, tables  # noqa: E402

FAR = float("inf")


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "gpu.jsonl")


@pytest.fixture
def ours(monkeypatch):
    """A machine that measures nothing itself, and parts to be filled."""
    measurements = {1: [], 2: []}
    monkeypatch.setattr(parts, "parts", lambda *_: {n: iter(ones) for n, ones in measurements.items()})
    return measurements


def measurement(name, answer=None, limit_s=100, needs=()):
    return parts.Measurement(name, limit_s, lambda s: answer or {"text": f"{name} done"}, needs)


def run_part(results, deadline=FAR, at_once=1):
    here = machine.Machine("cpu")
    return gpu_run.run_parts(here, parts.DRY, results, None, ("",), deadline, at_once)


def test_several_are_made_ready_at_once(results, ours):
    together = threading.Barrier(2)

    def measure(limit_s):
        together.wait(20)
        return {"text": "ready"}

    ours[1] += [parts.Measurement("a", 100, measure), parts.Measurement("b", 100, measure)]
    assert run_part(results, at_once=2) == 0
    assert [results[name]["text"] for name in "ab"] == ["ready", "ready"]


def test_what_is_timed_waits_for_what_is_made_ready(tmp_path, monkeypatch):
    monkeypatch.setenv(machine.TURNS, str(tmp_path / "turns"))
    order = []

    def timed():
        with machine.turn(alone=True):
            order.append("timed")

    thread = threading.Thread(target=timed)
    with machine.turn(alone=False), machine.turn(alone=False):  # beside each other
        thread.start()
        thread.join(0.2)
        order.append("ready")
    thread.join()
    assert order == ["ready", "timed"]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == gpu_run.NO_GPU
    assert "There is no GPU here" in run.stdout and not run.stderr


@pytest.mark.parametrize(
    "about, says",
    [
        ({"tensorflow": "2", "gpus": ["H200"], "library": None, "gpu_kernels": True}, ""),
        ({"tensorflow": "2", "gpus": ["H200"], "library": None, "gpu_kernels": False}, "has no GPU kernels"),
        ({"tensorflow": "2", "gpus": [], "library": None, "gpu_kernels": True}, "sees no GPU"),
        ({"tensorflow": "2", "gpus": [], "library": "is not built", "gpu_kernels": False}, "is not built"),
        ({"error": "no module"}, "TensorFlow does not start"),
    ],
)
def test_the_first_line_says_whether_there_are_gpu_kernels(about, says, monkeypatch, capsys):
    monkeypatch.setattr(machine.Machine, "worker", lambda self, what, limit_s: about)
    monkeypatch.setattr(machine, "nvidia_smi", lambda field: "")
    why_not = gpu_run.first_lines(machine.Machine())
    assert capsys.readouterr().out.startswith(f"gpu_kernels {str(not says).lower()}\n")
    assert says in why_not and bool(why_not) == bool(says)


def test_a_library_is_brought_along_under_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    (tmp_path / "tf_comptrain").mkdir()
    library = tmp_path / "_comptrain_ops_tf2_21.so"
    library.write_text("code")
    gpu_run.install(library)
    assert (tmp_path / "tf_comptrain" / library.name).read_text() == "code"
    with pytest.raises(SystemExit, match="Received: 'ops.so'"):
        gpu_run.install(tmp_path / "ops.so")


# --- Parts and results --------------------------------------------------------


@pytest.mark.parametrize("sanitizer", [None, "/cuda/bin/compute-sanitizer"])
def test_the_next_unfinished_part_runs_and_nothing_is_measured_twice(
    sanitizer, results, ours, monkeypatch, capsys
):
    monkeypatch.setattr(machine, "compute_sanitizer", lambda: sanitizer)
    asked = []
    for part, name in ((1, "codec"), (1, "sanitizer"), (2, "op")):
        needs = ("compute-sanitizer",) if name == "sanitizer" else ()
        one = parts.Measurement(name, 100, lambda s, name=name: asked.append(name) or {"text": name}, needs)
        ours[part].append(one)
    for _ in range(3):
        assert run_part(results) == 0
        results = Results(results.path)  # as the next command reads it
    assert asked == (["codec", "sanitizer", "op"] if sanitizer else ["codec", "op"])
    out = capsys.readouterr().out
    assert "All parts are finished" in out and "nothing is left" in out
    assert ("not measured: sanitizer: there is no compute-sanitizer" in out) == (sanitizer is None)


def test_what_there_is_no_time_for_is_left(results, ours, capsys):
    ours[1].append(measurement("codec"))
    run_part(results, deadline=time.monotonic() + 20)
    assert "codec" not in results
    assert "1 left for lack of time (codec)" in capsys.readouterr().out


def test_what_the_budget_cuts_short_is_no_result(results, ours, capsys):
    ours[1] += [measurement("short", {"error": "took more than 70 s", "timed_out": True})]
    run_part(results, deadline=time.monotonic() + 80)
    assert "short" not in results
    run_part(results)  # all the time that it may take
    assert results["short"]["error"]


def test_a_measurement_that_breaks_is_noted_and_the_others_go_on(results, ours, capsys):
    ours[1] += [parts.Measurement("codec", 100, lambda s: {}["peak"]), measurement("speed")]
    assert run_part(results) == 1
    assert "failed: codec; to measure them again" in capsys.readouterr().out
    assert results["speed"]["text"] == "speed done"
    results.forget("codec")
    ours[1][0] = measurement("codec")
    assert run_part(results) == 0
    assert "error" not in Results(results.path)["codec"]


def test_a_line_that_was_cut_off_costs_one_result_only(results):
    results.add("codec", {"text": "ok"})
    with results.path.open("a") as file:
        file.write('{"name": "op", "ro')
    again = Results(results.path)
    assert "codec" in again and "op" not in again
    again.add("step", {"images_s": 1})
    assert [*Results(results.path).named("")] == ["codec", "step"]


def test_tables_are_whole_and_have_every_row(results):
    rows = [f"| plane | ReLU | {k} | 9.1 | 500 | 400 | 600 | 2000 |" for k in range(500)]
    results.add("codec-speed-64", {"text": "\n".join(rows)})
    results.add(
        "ops",
        {"rows": [{"codec": "zvc", "mb": 64, "ratio": 2.0, "compress": 9, "decompress": 8, "copy": 7}]},
    )
    for variant, speed, peak in (("plain", 100, 8e6), ("compressed", 95, 2e6)):
        results.add(f"step-Net-64-float32-xla-{variant}", {"images_s": speed, "peak_bytes": peak})
    text = tables(results)
    assert all(row in text for row in rows)
    assert "| zvc | 64 | 2.00 | 9.0 | 8.0 | 7.0 |" in text
    assert "| step-Net-64-float32-xla-compressed | 95.0 | 0.950 | 2 | 4.00 |" in text


@pytest.mark.long
def test_a_part_that_is_terminated_leaves_its_results_and_no_process(tmp_path):
    left = tmp_path / "left"
    begun = tmp_path / "begun"
    program = tmp_path / "codec_gpu"
    program.write_text(
        f"#!/bin/sh\n[ $1 = 0 ] || exit 0\necho $$ > {begun}.new\nmv {begun}.new {begun}\nsleep 30\ntouch {left}\n"
    )
    program.chmod(0o755)
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--codec-binary", str(program)]
    command += ["--part", "1", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert [*Results(tmp_path / "out").named("")] == ["codec-shapes"]
    assert not runs(int(begun.read_text()))
    assert not left.exists()


def runs(pid):
    """Whether a process still runs after a second; a zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(10):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.1)
    return True


# --- Verdicts -----------------------------------------------------------------


def test_no_gpu_is_a_failure_of_the_codec_program(tmp_path):
    program = tmp_path / "codec_gpu"
    program.write_text("#!/bin/sh\necho skipped: there is no GPU here\nexit 77\n")
    program.chmod(0o755)
    result = machine.Machine("cpu", program).codec_program(["1", "0"], 60)
    assert result["error"] == "exit status 77" and "skipped" in result["text"]


@pytest.mark.parametrize("most", [40, 100, 1000, 4321])
@pytest.mark.parametrize("error", [0.8, 1.0, 1.3])
def test_the_largest_batch_is_found_in_few_trials(most, error):
    """Memory that ends at `most`, though peaks grow as if it ended at error * most."""
    memory, trials = 10**9, {}
    while (batch := parts.next_batch(trials, memory, (32, 64), 10**6)) is not None:
        trials[batch] = int(memory * batch / (error * most)) if batch <= most else 0
        assert len(trials) <= 8
    fits = max(batch for batch, peak in trials.items() if peak)
    assert most >= fits > 0.9 * most - 16 or most < 64


def test_no_batch_is_tried_that_passes_32_bit_indices():
    trials = {32: 10, 64: 20}
    assert parts.next_batch(trials, 10**6, (32, 64), 2674) == 2674
    trials[2674] = 1000
    assert parts.next_batch(trials, 10**6, (32, 64), 2674) is None


def search(results):
    ones = parts.largest_batch(machine.Machine("cpu"), parts.Sizes(), results, "Net", "plain")
    return next(ones, None)


def test_only_lack_of_memory_says_that_a_batch_does_not_fit(results):
    for batch in (32, 64):
        results.add(f"batch-Net-plain-{batch}", {"used_bytes": batch * 10**8, "images_s": 1, "peak_bytes": 1})
    guess = search(results).name
    assert guess == "batch-Net-plain-368"
    results.add(guess, {"does_not_fit": "out of memory"})
    assert search(results).name == "batch-Net-plain-320"
    results.add("batch-Net-plain-320", {"error": "exit status 1: cuDNN has no algorithm"})
    assert search(results) is None
    row = next(line for line in tables(results).splitlines() if line.startswith("| batch-Net-plain "))
    assert row.startswith("| batch-Net-plain | 64 | 368 |") and "320: exit status 1" in row


@pytest.mark.parametrize("kind", ["ResourceExhaustedError", "InternalError"])
def test_a_worker_tells_lack_of_memory_from_failure(kind, monkeypatch):
    import tensorflow as tf

    def no_model(*_):
        raise getattr(tf.errors, kind)(None, None, "failed to allocate 9 bytes")

    monkeypatch.setattr(workers, "compiled", no_model)
    work = {"net": "ResNet50", "variant": "plain", "batch": 8, "dtype": "float32", "jit": False, "steps": 1}
    if kind == "ResourceExhaustedError":
        assert "9 bytes" in workers.train(**work, small=True)["does_not_fit"]
    else:
        with pytest.raises(tf.errors.InternalError):
            workers.train(**work, small=True)


@pytest.mark.long(but=["plain", "compressed"])
@pytest.mark.parametrize("variant", ["plain", "compressed", "recompute", "remat", "offload_zvc"])
def test_every_variant_trains(variant):
    work = {"net": "ResNet50", "variant": variant, "batch": 4, "dtype": "float32", "jit": False, "steps": 1}
    result = workers.train(**work, small=True, limit_bytes=10**9)
    assert result["images_s"] > 0 and result["largest_tensor"] == 32 * 32 * 16 and not result["obstacle"]
    assert ("hidden" in remarks(result)) == variant.startswith("offload")


def test_copies_and_how_much_of_them_is_hidden(tmp_path):
    import tf_comptrain as ct

    model, _, _ = workers.compiled("ResNet50", "plain", False, True)
    ct.compress_model(model, storage=ct.Offload(codec=None, folder=tmp_path, inflight=1))
    found = workers.moved(model, *workers.batch_of("ResNet50", 32, True))
    assert 0 <= found["hidden_s"] <= found["moving_s"] and found["moving_s"] > 0


def test_a_peak_over_the_limit_does_not_fit(monkeypatch):
    monkeypatch.setattr(workers, "timed", lambda *_: {"used_bytes": 1001, "images_s": 1.0})
    work = {"net": "ResNet50", "variant": "plain", "batch": 2, "dtype": "float32", "jit": False, "steps": 1}
    assert workers.train(**work, small=True, limit_bytes=1001)["images_s"]
    assert workers.train(**work, small=True, limit_bytes=1000)["does_not_fit"] == "1001 bytes were in use"


@pytest.mark.long
def test_blocks_have_the_gradients_of_the_whole():
    import numpy as np
    from tensorflow import keras

    x = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("float32")
    y = np.arange(8) % 10
    losses = []
    for variant in ("plain", "recompute", "remat"):
        keras.utils.set_random_seed(0)
        model, _, _ = workers.compiled("ResNet50", variant, False, True)
        assert variant == "plain" or len(model.layers) > 3
        losses.append([float(model.train_on_batch(x, y)) for _ in range(3)])
    np.testing.assert_allclose(losses, [losses[0]] * 3, rtol=1e-3)


# --- Activations --------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    import numpy as np

    draw, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "cifar10.npz"
    images = draw.integers(0, 256, (2, 8, 32, 32, 3), np.uint8)
    labels = draw.integers(0, 10, (2, 8))
    np.savez(path, x_train=images[0], y_train=labels[0], x_test=images[1], y_test=labels[1])
    return path


def test_activations_are_those_of_a_training_step(cifar10, tmp_path):
    import numpy as np

    files = workers.activations(str(cifar10), "", str(tmp_path), batch=4, small=True)["files"]
    dense, relu = (np.fromfile(file["path"], "float32").reshape(4, 32, 32, 16) for file in files)
    assert {(file["width"], file["channels"]) for file in files} == {(32, 16)}
    assert dense.min() < 0 and relu.min() == 0 and 0.4 < np.mean(relu == 0) < 0.6
    assert [file["bound"] for file in files] == pytest.approx([0.1 * dense.std(), 0.1 * relu.std()])


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_programs_are_timed_on_activations_that_are_gone_behind_them(cifar10, tmp_path, monkeypatch):
    files = [{"path": str(tmp_path / "conv"), "width": 56, "channels": 64, "bound": 0.25}]
    asked = []

    def worker(self, what, limit_s, **work):
        asked.append(work["folder"])
        return {"files": files}

    monkeypatch.setattr(machine.Machine, "worker", worker)
    program = script(tmp_path / "codec_gpu", 'echo "$@"')
    cuszp = script(
        tmp_path / "cuSZp",
        '[ "$2 $4 $8 ${10} ${11}" = "$CONV f32 1 abs 0.25" ] || exit 3\n'
        "echo cuSZp compression   end-to-end speed: 100.0 GB/s; echo cuSZp decompression end-to-end speed: 200 GB/s\n"
        "echo cuSZp compression ratio: 7.5",
    )
    monkeypatch.setenv("CONV", files[0]["path"])
    here = machine.Machine("cpu", program, cifar10, cuszp=cuszp)
    on = {"limit_s": 60, "batch": 4, "small": True}
    assert here.on_activations(here.codec_speed, **on)["text"] == f"0 {tmp_path}/conv:56:64:0.25\n"
    rows = here.on_activations(here.cuszp_speed, **on)["rows"]
    assert [row["mode"] for row in rows] == ["fixed", "plain"]
    assert rows[0]["compress"] == pytest.approx(104.8576)  # it prints MiB a millisecond
    assert rows[0]["decompress"] == pytest.approx(209.7152) and rows[0]["ratio"] == 7.5
    monkeypatch.setenv("CONV", "another")
    assert here.on_activations(here.cuszp_speed, **on)["error"] == "exit status 3"
    assert len(asked) == 3 and not any(Path(folder).exists() for folder in asked)
    here.cuszp = script(cuszp, "echo no speeds")
    assert here.cuszp_speed(files, 60)["error"] == "it printed no two speeds and a ratio"


def test_cuszp_has_a_line_in_any_case(results):
    assert "not built here" in machine.Machine("cpu").lacks("cuSZp")
    assert "| not built here | | | | |" in tables(results)
    row = {"data": "conv", "mode": "fixed", "ratio": 7.5, "compress": 300.0, "decompress": 400.0}
    results.add("cuszp", {"rows": [row]})
    assert "| conv | fixed | 7.50 | 300 | 400 |" in tables(results)
    results.add("cuszp", {"error": "exit status 3", "rows": []})
    assert "| exit status 3 | | | | |" in tables(results)


# --- Goals --------------------------------------------------------------------


def verdicts(results):
    return {goal.what: (goal.found, goal.verdict) for goal in goals.goals(results)}


def test_the_other_networks_have_lines_without_a_goal(results):
    asked = {one.name for one in parts.larger_things(machine.Machine("cpu"), parts.Sizes(), results)}
    for net, batch in goals.OTHERS.items():
        stem = f"step-{net}-{batch}-float32-xla-limit"
        assert {f"{stem}-plain", f"{stem}-compressed"} <= asked
        results.add(f"{stem}-plain", {"images_s": 100.0, "peak_bytes": 8e9})
        results.add(f"{stem}-compressed", {"images_s": 90.0, "peak_bytes": 2e9})
    text = tables(results)
    assert "| VGG16, batch 64, float32, xla, under the limit, images/s of plain's |  | 0.900 |  |" in text
    assert (
        "| decoder, batch 64, float32, xla, under the limit, plain's peak over ours |  | 4.000 |  |" in text
    )


def test_what_has_not_been_measured_is_said_not_to_be(results):
    assert {verdict for _, verdict in verdicts(results).values()} == {"not measured"}
    assert "not measured" in tables(results) and "held to" not in tables(results, rehearsal=True)


def test_figures_are_held_to_their_goals(results):
    head = "| codec | data | MB | ratio | compress | with read-back | decompress | device copy |"
    rows = [head]
    for mb, decompress in ((16, 100), (64, 2900), (256, 2700)):
        rows.append(f"| plane | conv2 | {mb} | 8.1 | 2600 | 500 | {decompress} | 2150 |")
        rows.append(f"| plane | conv2 | {mb} | x: y | 3 | 4 |")
    results.add("codec-activations", {"text": "\n".join(rows)})
    results.add("codec-speed-64", {"text": "| plane | ReLU | 64 | 8.1 | 1 | 1 | 1 | 2150 |"})  # made up
    results.add("sanitizer-memcheck", {"text": "ok"})
    results.add("tests", {"text": "1 failed", "error": "exit status 1"})
    stem = "step-ResNet50-64-float32-xla"
    results.add(f"{stem}-plain", {"images_s": 100.0, "peak_bytes": 8e9})
    results.add(f"{stem}-compressed", {"images_s": 96.0, "peak_bytes": 2.5e9})
    for variant, batch, rate in (("plain", 100, 500), ("compressed", 450, 600), ("recompute", 300, 400)):
        results.add(f"batch-ResNet50-{variant}-{batch}", {"images_s": rate})
        results.add(f"batch-ResNet50-{variant}-{2 * batch}", {"does_not_fit": "no"})
    found = verdicts(results)
    assert found["plane, kernels, activations, compress, GB/s"] == (2600.0, "met")
    slowest = 2700.0, "missed"  # 16 MB lie in the cache
    assert found["plane, kernels, activations, decompress, GB/s"] == slowest
    assert found["sanitizer-memcheck without an error"][1] == "met"
    assert found["tests without an error"][1] == "missed"
    assert found["ResNet50, batch 64, float32, xla, images/s of plain's"] == (0.96, "met")
    assert found["ResNet50, batch 64, float32, xla, plain's peak over ours"] == (3.2, "missed")
    assert found["ResNet50, largest batch over plain's, XLA"] == (4.5, "met")
    over = "ResNet50 under the limit, images/s over the best of others"
    assert found[over][1] == "not measured"  # without keras.remat
    results.add("batch-ResNet50-remat-200", {"images_s": 450})
    assert verdicts(results)[over] == (1.2, "met")


# --- Programs -----------------------------------------------------------------


def test_a_worker_is_heard_among_what_libraries_print(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("print('noise'); print('answer: ' + str([1] * 9000)); print('more')")
    monkeypatch.setattr(machine, "WORKERS", script)
    here = machine.Machine("cpu")
    assert here.worker("about", 60) == [1] * 9000
    script.write_text("print('no module')")
    assert here.worker("about", 60)["error"] == "it gave no answer: no module"


def test_what_a_command_started_ends_with_its_time(tmp_path):
    left = tmp_path / "left"
    result = machine.run(["sh", "-c", f"(sleep 3; touch {left}) & sleep 60"], 0.5)
    assert result["timed_out"]
    time.sleep(3.5)
    assert not left.exists()


def test_every_part_has_something_to_ask(results):
    found = parts.parts(machine.Machine("cpu"), parts.Sizes(), results)
    names = {number: [one.name for one in ones] for number, ones in found.items()}
    assert [*names] == [1, 2, 3, 4] and all(names.values())
    assert names[1][:4] == ["codec-shapes", "codec-speed-16", "codec-speed-64", "codec-speed-256"]
    assert names[1][4:] == ["codec-activations", "cuszp"]
    on_gpu = machine.Machine("cpu")
    on_gpu.device = "gpu"
    assert next(parts.first_steps(on_gpu, parts.Sizes())).name == "gpu-check"
    assert names[2][:4] == [
        f"step-ResNet50-64-float32-{mode}"
        for mode in ("xla-plain", "xla-compressed", "executor-plain", "executor-compressed")
    ]
    assert {"training-plain", "step-VGG16-64-float32-xla-limit-remat"} <= {*names[4]}
