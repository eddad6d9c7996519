"""What the parts of gpu.py share: where the programs are, what was measured, what did not hold."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("BUILD", os.path.join(ROOT, "build-cuda"))
GIB = 2**30

results, failures = [], []


def record(kind, **fields):
    results.append(dict(kind=kind, **fields))


def check(condition, message):
    if not condition:
        failures.append(message)
        print(f"FAILED: {message}", flush=True)


def program(*args, env=None, timeout=600):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
