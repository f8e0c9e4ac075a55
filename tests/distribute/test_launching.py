"""`tf-comptrain launch`: workers start, speak, and end together. No TensorFlow in the workers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tf_comptrain import cli

ROOT = Path(__file__).resolve().parent.parent.parent
SAY = """
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
print("worker", config["task"]["index"], "of", len(config["cluster"]["worker"]), *sys.argv[1:])
print(os.environ["TF_NUM_INTRAOP_THREADS"], os.environ.get("CUDA_VISIBLE_DEVICES"))
"""
# Worker 1 ends as FAIL says once all have begun; the others, and what they started, would go on for a minute.
FAIL = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
number = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path(sys.argv[1], f"{number}").write_text(f"{os.getpid()} {child.pid}")
while len(list(Path(sys.argv[1]).iterdir())) < 3:
    time.sleep(0.01)
if number == 1:
    FAIL
time.sleep(60)
"""

# The launcher needs nothing of the package: without it, it starts at once.
LAUNCHER = f"""
import json, runpy, sys
launching = runpy.run_path({str(ROOT / "tf_comptrain" / "distribute" / "launching.py")!r})
sys.exit(launching["launch"](json.loads(sys.argv[1]), launching["free_addresses"](3), range(3)))
"""


def command(*arguments):
    return cli.run(cli.parse(["tf-comptrain", *map(str, arguments)]))


def script(folder, text):
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_a_reader_that_goes_away_ends_the_workers(tmp_path):
    """As `| head -1` does; the worker would fill the pipe and wait."""
    talks = script(tmp_path, "import os\nprint(os.getpid())\nwhile True: print('x' * 80)\n")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, json.dumps([sys.executable, str(talks)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(60) == 128 + signal.SIGPIPE
    assert launcher.stderr.read() == ""
    assert not alive(int(first.split()[-1]))


def alive(pid):
    """Whether a process is there that still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(folder):
    pids = [int(pid) for file in folder.iterdir() for pid in file.read_text().split()]
    assert len(pids) == 6
    until = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_workers_know_each_other_and_speak_behind_their_numbers(tmp_path, capsys):
    assert command("launch", "-n", 3, "--devices", "4,5,6", script(tmp_path, SAY), "--epochs", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    threads = max(os.cpu_count() // 3, 1)
    for k in range(3):
        assert f"[{k}] worker {k} of 3 --epochs 2" in lines
        assert f"[{k}] {threads} {4 + k}" in lines


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ("sys.exit(7)", 7, "worker 1 of 3 failed with exit status 7; the others were ended"),
        ("os.kill(os.getpid(), 9)", 137, "worker 1 of 3 was ended by SIGKILL; the others were ended"),
    ],
)
def test_the_first_that_fails_ends_all(tmp_path, capsys, how, status, text):
    folder = tmp_path / "pids"
    folder.mkdir()
    assert command("launch", "-n", 3, script(tmp_path, FAIL.replace("FAIL", how)), folder) == status
    assert text in capsys.readouterr().out
    wait_until_gone(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_launcher(tmp_path, number):
    folder = tmp_path / "pids"
    folder.mkdir()
    text = FAIL.replace("FAIL", "pass")
    if number == signal.SIGKILL:  # children of a worker end with its group, which nobody is there to end
        text = text.replace('time.sleep(60)"]', 'time.sleep(3)"]')
    command = [sys.executable, str(script(tmp_path, text)), str(folder)]
    program = [sys.executable, "-c", LAUNCHER, json.dumps(command)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as launcher:
        while len([file for file in folder.iterdir() if file.read_text()]) < 3:
            time.sleep(0.05)
        launcher.send_signal(number)
        assert launcher.wait(30) == (-9 if number == signal.SIGKILL else 128 + number)
    wait_until_gone(folder)


@pytest.mark.parametrize(("arguments", "warns"), [(["-n", 2], True), (["-n", 1], False)])
def test_several_workers_are_told_that_anybody_may_reach_them(tmp_path, capsys, arguments, warns):
    assert command("launch", *arguments, script(tmp_path, SAY)) == 0
    assert ("listen on all addresses" in capsys.readouterr().err) == warns


SERVER = """
import socket, sys
import tensorflow as tf
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    port = one.getsockname()[1]
server = tf.distribute.Server({"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0)
files = [open("/proc/net/tcp").read(), open("/proc/net/tcp6").read()]
print("listens at", *(line.split()[1] for text in files for line in text.splitlines()
                      if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"))
"""


@pytest.mark.long
def test_tensorflows_server_listens_on_all_addresses_as_the_docs_say():
    """Where this fails TensorFlow can be told otherwise: then the launcher should."""
    ran = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=300)
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("listens at"))
    hosts = {address.rpartition(":")[0] for address in line.split()[2:]}
    assert hosts and all(set(host) == {"0"} for host in hosts), ran.stdout


def test_one_worker_of_a_cluster(tmp_path, capsys):
    assert command("launch", "--hosts", "a:1,b:2", "--index", 1, script(tmp_path, SAY)) == 0
    assert "[1] worker 1 of 2" in capsys.readouterr().out


def test_slurm_script_starts_a_worker_a_node(tmp_path, capsys):
    """Run with a `scontrol` and an `srun` that do what Slurm's do, on one machine."""
    assert command("launch", "--print", "slurm", "-n", 2, "train.py", "--name", "it's a name") == 0
    (tmp_path / "job.sh").write_text(capsys.readouterr().out)
    stubs = {
        "scontrol": "printf 'a\\nb\\n'",
        "srun": 'shift; for k in 0 1; do SLURM_PROCID=$k "$@"; done',
        "tf-comptrain": "printf '%s|' \"$@\"; echo",
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sh")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        f"launch|--hosts|a:2222,b:2222|--index|{k}|train.py|--name|it's a name|" for k in range(2)
    ], done.stderr


def test_what_a_cluster_needs_to_know(capsys):
    assert command("launch", "--print", "tf-config", "-n", 2, "train.py") == 0
    texts = re.findall(r"^worker \d: TF_CONFIG='(.*)'$", capsys.readouterr().out, re.M)
    assert [json.loads(text)["task"] for text in texts] == [{"type": "worker", "index": k} for k in range(2)]
    assert json.loads(texts[0])["cluster"] == {"worker": ["host0:2222", "host1:2222"]}
    assert command("launch", "--print", "kubernetes", "-n", 2, "train.py", "--epochs", "2") == 0
    text = capsys.readouterr().out
    assert "completions: 2" in text and "--hosts train-0.train:2222,train-1.train:2222 --index" in text
    line = re.search(r"command: (\[.*\])", text)
    assert json.loads(line.group(1))[2].endswith("train.py --epochs 2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "a:1,b:2"], "--index must be which of the 2 --hosts"),
        (["--hosts", "a:1,b:2", "--index", "2"], "Received: 2"),
        (["--index", "0"], "--index goes with --hosts"),
        (
            ["--hosts", "a:1,b:2", "--print", "tf-config", "--index", "5"],
            "--print prints what all workers need",
        ),
        (["-n", "2", "--devices", "0"], "one for each of the 2 workers"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert command("launch", *arguments, "train.py") == 2
    assert message in capsys.readouterr().err
