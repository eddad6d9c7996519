"""Runs the program from outside: builds inputs, starts it, measures it. Standard library only."""
import json
import os
import random
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SNUG = os.environ.get("SNUG", os.path.join(ROOT, "build", "bin", "snug"))
SHARED = os.environ.get("SNUG_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))
MIB = 1 << 20
# On a GPU the budget is the device's, of which the kernel keeps no account.
DEVICE = os.environ.get("SNUG_DEVICE", "")
ON_GPU = DEVICE.startswith("cuda")


def _spawn_floor():
    """A child's account begins with what its parent occupied; below that it says nothing about the child."""
    process = subprocess.Popen(["true"])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024


WORDS = ("time year people way day man thing woman life child world school state family student group country problem hand "
         "part place case week company system program question work government number night point home water room mother "
         "area money story fact month lot right study book eye job word business issue side kind head house service").split()


def needs_shared(path):
    """Skips a test where the shared data is not beside the checkout."""
    full = os.path.join(SHARED, path)
    return unittest.skipUnless(os.path.exists(full), f"needs {path} in the shared data folder, which is not here")


class Result:
    """peak_bytes is the kernel's account of the process, None where the process is too small for it to tell."""

    def __init__(self, code, out, err, peak_bytes):
        self.code, self.out, self.err, self.peak_bytes = code, out, err, peak_bytes

    def json(self):
        return json.loads(self.out)


def run(*args, expect=0, env=None, stdin=None):
    """Runs snug and checks its exit code; None accepts any."""
    if DEVICE and args[0] in ("plan", "train", "eval", "predict", "embed", "generate"):
        args = (*args, "--device", DEVICE)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([SNUG, *map(str, args)], stdout=out, stderr=err,
                                   stdin=stdin or subprocess.DEVNULL, env={**os.environ, **(env or {})})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        peak = usage.ru_maxrss * 1024
        result = Result(process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"),
                        peak if peak > _spawn_floor() and not ON_GPU else None)
    if expect is not None and result.code != expect:
        raise AssertionError(f"snug {' '.join(map(str, args))}\nexit code {result.code}, expected {expect}\n{result.err}")
    return result


def sentence(rng, longest):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, longest)))


def write_csv(path, rows, rng, longest=12, labels=("no", "yes")):
    """Labels follow the first word, so that there is something to learn."""
    with open(path, "w") as f:
        f.write("text,label\n")
        for _ in range(rows):
            text = sentence(rng, longest)
            f.write(f"{text},{labels[WORDS.index(text.split()[0]) % len(labels)]}\n")
    return path


def read_losses(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


class SnugTest(unittest.TestCase):
    """A folder of its own for each test, with a private cache."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="snug-test-")
        self.addCleanup(self.folder.cleanup)
        self.rng = random.Random(self.id())

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def init(self, name="model", train=None, hidden=48, layers=2, heads=4, positions=64, vocab=300, **more):
        train = train or write_csv(self.path("vocab-source.csv"), 200, self.rng)
        flags = [f"--{k.replace('_', '-')}={v}" for k, v in more.items()]
        run("init", "--train", train, "--vocab-size", vocab, "--hidden-size", hidden, "--num-hidden-layers", layers,
            "--num-attention-heads", heads, "--max-position-embeddings", positions, "--output-dir", self.path(name), *flags)
        return self.path(name)

    def cache(self):
        return ["--cache-dir", self.path("cache")]
