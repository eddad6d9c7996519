"""Killed anywhere and resumed, a run ends in the same bits as one that was left alone."""
import os
import signal
import subprocess
import time
import unittest
from xml.etree import ElementTree

from harness import SNUG, SnugTest, read_losses, run, write_csv

KILLS = 20


class Resume(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init(hidden=64, layers=2)
        self.data = write_csv(self.path("train.csv"), 300, self.rng, longest=20)
        self.validation = write_csv(self.path("validation.csv"), 60, self.rng, longest=20)

    def command(self, name, *flags):
        return ["train", "--model", self.model, "--train", self.data, "--validation", self.validation, "--batch-size", "16",
                "--max-steps", "60", "--save-steps", "7", "--eval-strategy", "steps", "--eval-steps", "10",
                "--load-best-model-at-end", "--output-dir", self.path(name), *self.cache(), *flags]

    def weights(self, name):
        with open(os.path.join(self.path(name), "model.safetensors"), "rb") as f:
            return f.read()

    def test_killed_at_random_moments(self):
        start = time.monotonic()
        run(*self.command("whole"))
        duration = time.monotonic() - start
        expected, losses = self.weights("whole"), read_losses(self.path("whole"))
        kills = 0
        while kills < KILLS:
            name = f"killed-{kills}"
            for attempt in range(100):
                resumable = os.path.isdir(self.path(name, "checkpoints")) and any(
                    entry.startswith("step-") and "." not in entry for entry in os.listdir(self.path(name, "checkpoints")))
                flags = ["--resume-from-checkpoint", "latest"] if resumable else ["--overwrite-output-dir"]
                process = subprocess.Popen([SNUG, *self.command(name, *flags)], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE)
                try:  # up to three kills a run, then it may finish
                    wait = duration * self.rng.random() if attempt < 3 and kills < KILLS else None
                    _, err = process.communicate(timeout=wait)
                    self.assertEqual(process.returncode, 0, err.decode())
                    break
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    kills += 1
            self.assertEqual(self.weights(name), expected)
            self.assertEqual(read_losses(self.path(name)), losses, "every step is in metrics.jsonl exactly once")

    def test_a_signal_saves_and_says_so(self):
        process = subprocess.Popen([SNUG, *self.command("stopped", "--max-steps", "100000")], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        while not os.path.exists(self.path("stopped", "metrics.jsonl")):
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 9, err.decode())
        self.assertIn("saved", err.decode())
        steps = max(read_losses(self.path("stopped")))
        self.assertTrue(os.path.isdir(self.path("stopped", "checkpoints", f"step-{steps}")))

    def test_what_a_run_tells(self):
        run(*self.command("told"))
        report = ElementTree.parse(self.path("told", "report.html")).getroot()
        self.assertEqual(len(list(report.iter("circle"))), 6, "a dot for each evaluation")
        cells = {row[0].text: row[1].text for row in report.iter("tr")}
        self.assertEqual(cells["steps"], "60")
        self.assertIn("measured peak", cells)
        events = self.path("told", "tensorboard", "events.out.tfevents.snug")
        with open(events, "rb") as f:
            whole = f.read()
        self.assertEqual(whole.count(b"train/loss"), 60)
        self.assertEqual(whole.count(b"eval/accuracy"), 6)
        run(*self.command("told", "--resume-from-checkpoint", "latest"))
        with open(events, "rb") as f:
            self.assertEqual(f.read().count(b"train/loss"), 60, "no step is there twice")

    def test_resuming_something_else_is_refused(self):
        run(*self.command("run", "--max-steps", "10"))
        resume = ["--resume-from-checkpoint", "latest", "--max-steps", "10"]
        self.assertIn("seed", run(*self.command("run", *resume, "--seed", "7"), expect=2).err)
        with open(self.data, "a") as f:
            f.write("one more row,yes\n")
        self.assertIn("changed since", run(*self.command("run", *resume), expect=3).err)
        self.assertIn("no checkpoint", run(*self.command("nothing", *resume), expect=3).err)

    def test_a_second_run_on_the_same_folder_is_refused(self):
        process = subprocess.Popen([SNUG, *self.command("busy", "--max-steps", "100000")], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(self.path("busy", "metrics.jsonl")):
                time.sleep(0.02)
            self.assertIn("another run", run(*self.command("busy", "--overwrite-output-dir"), expect=5).err)
            self.assertIn("holds an earlier run", run(*self.command("busy"), expect=2).err)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    unittest.main()
