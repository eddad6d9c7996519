"""Planning beyond one budget: the sweep, refusals with what would fit, parts that are recomputed, calibration."""
import json
import os
import unittest

from harness import MIB, SnugTest, read_losses, run, write_csv


class Planning(SnugTest):
    def flags(self, hidden=64, layers=3, positions=64, longest=60, **more):
        model = self.init(hidden=hidden, layers=layers, positions=positions, **more)
        data = write_csv(self.path("train.csv"), 60, self.rng, longest=longest)
        return ["--model", model, "--train", data, "--batch-size", 16, "--threads", 2, *self.cache()]

    def test_the_sweep_is_a_frontier_with_the_chosen_plan_in_it(self):
        flags = self.flags(hidden=128, layers=4)
        roomy = run("plan", *flags, "--memory", "100GiB", "--json").json()
        self.assertNotIn("sweep", roomy)
        middle = (roomy["minimum_budget_bytes"] + roomy["peak_bytes"]) // 2
        plan = run("plan", *flags, "--memory", middle, "--sweep", "--json").json()
        sweep = plan["sweep"]
        self.assertGreater(len(sweep), 3)
        for before, after in zip(sweep, sweep[1:]):
            self.assertLess(before["budget_bytes"], after["budget_bytes"])
            self.assertGreater(before["relative_time"], after["relative_time"])
        for point in sweep:
            self.assertLessEqual(point["peak_bytes"], point["budget_bytes"])
            self.assertIsNone(point["predicted_tokens_per_second"])
        self.assertEqual(sweep[-1]["relative_time"], 1)
        chosen = [point for point in sweep if point["chosen"]]
        self.assertEqual(len(chosen), 1)
        self.assertEqual(chosen[0]["recompute"], plan["recompute"])
        self.assertEqual(chosen[0]["micro_batch_tokens"], plan["micro_batch_tokens"])
        text = run("plan", *flags, "--memory", middle, "--sweep").out
        for word in ("budget", "peak", "recomputed", "speed", "@ is the plan above", "\n>"):
            self.assertIn(word, text)

    def test_a_refusal_says_what_would_fit(self):
        # With the state in a file, little is left above what the program itself takes.
        flags = [*self.flags(positions=512, longest=500, hidden=256), "--offload", "none"]
        least = run("plan", *flags, "--json").json()["minimum_budget_bytes"]
        refused = run("plan", *flags, "--memory", least - 2 * MIB, "--json", expect=4).json()
        self.assertFalse(refused["fits"])
        fitting = refused["would_fit_with"]
        self.assertTrue(fitting)
        self.assertIn("--max-length 64", [a["technique"] for a in fitting])
        peaks = [a["peak_bytes"] for a in fitting]
        self.assertEqual(peaks, sorted(peaks))
        for a in fitting:
            self.assertLessEqual(a["peak_bytes"], least - 2 * MIB)
            self.assertAlmostEqual(a["peak_bytes"] + a["saves_bytes"], refused["minimum_budget_bytes"], delta=1)
            # What is promised holds.
            run("plan", *flags, *a["technique"].split(), "--memory", a["peak_bytes"] + MIB, "--json")
        text = run("plan", *flags, "--memory", least - 2 * MIB, expect=4).out
        self.assertIn("with other results it would fit", text)
        self.assertIn("--max-length 64 would need", text)

    def test_a_hopeless_refusal_says_so(self):
        flags = self.flags()
        refused = run("plan", *flags, "--memory", "1MiB", "--json", expect=4).json()
        self.assertEqual(refused["would_fit_with"], [])
        text = run("plan", *flags, "--memory", "1MiB", expect=4).out
        self.assertIn("nothing that changes the results makes it fit either", text)

    def test_parts_can_be_named_and_change_no_bit(self):
        flags = [*self.flags(), "--max-steps", 5, "--save-strategy", "steps", "--save-steps", 3]
        losses = {}
        for parts in ("none", "norms", "activations", "mlp,attention", "attention,sums", "all", "2"):
            folder = self.path("out-" + parts)
            run("train", *flags, "--recompute", parts, "--output-dir", folder)
            losses[parts] = read_losses(folder)
            self.assertEqual(losses[parts], losses["none"], parts)
        with open(self.path("out-mlp,attention", "run.json")) as f:
            self.assertEqual(json.load(f)["plan"]["recompute"], "mlp in 3, attention in 3 of 3 layers")

    def test_a_resumed_run_recomputes_what_it_did(self):
        flags = [*self.flags(), "--max-steps", 6, "--save-steps", 3]
        whole = self.path("whole")
        run("train", *flags, "--recompute", "norms,mlp", "--output-dir", whole)
        # The flag is gone, the checkpoint's plan is not.
        checkpoint = sorted(os.listdir(os.path.join(whole, "checkpoints")))[0]
        run("train", *flags, "--output-dir", whole, "--resume-from-checkpoint", os.path.join(whole, "checkpoints", checkpoint))
        with open(os.path.join(whole, "run.json")) as f:
            self.assertEqual(json.load(f)["plan"]["recompute"], "norms in 3, mlp in 3 of 3 layers")

    def test_wrong_parts_are_refused_with_the_right_ones(self):
        flags = self.flags()
        for wrong in ("mpl", "mlp,", "99", "-1", "mlp norms"):
            error = run("plan", *flags, "--recompute", wrong, expect=2).err
            for name in ("auto", "none", "all", "norms", "activations", "mlp", "attention", "sums"):
                self.assertIn(name, error)

    def test_calibration_predicts_and_is_kept(self):
        flags = self.flags(hidden=128)
        self.assertIsNone(run("plan", *flags, "--json").json()["predicted_tokens_per_second"])
        first = run("plan", *flags, "--calibrate", "--json").json()
        self.assertGreater(first["predicted_tokens_per_second"], 0)
        kept = [name for name in os.listdir(self.path("cache")) if name.startswith("speed-")]
        self.assertEqual(len(kept), 1)
        again = run("plan", *flags, "--json").json()
        self.assertEqual(again["predicted_tokens_per_second"], first["predicted_tokens_per_second"])
        # Another width was not timed.
        other = self.flags(hidden=96, name="other")
        self.assertIsNone(run("plan", *other, "--json").json()["predicted_tokens_per_second"])

    def test_a_calibrated_run_stays_inside_its_budget(self):
        flags = [*self.flags(hidden=128), "--max-steps", 4]
        plan = run("plan", *flags, "--json", "--memory", "100GiB").json()
        budget = (plan["minimum_budget_bytes"] + plan["peak_bytes"]) // 2 + 2 * MIB
        folder = self.path("out")
        result = run("train", *flags, "--calibrate", "--memory", budget, "--output-dir", folder)
        with open(os.path.join(folder, "run.json")) as f:
            report = json.load(f)
        self.assertLessEqual(report["measured_peak_bytes"], budget)
        if result.peak_bytes:
            self.assertLessEqual(result.peak_bytes, budget)

    def test_a_card_that_is_not_here_cannot_be_timed(self):
        error = run("plan", *self.flags(), "--device-profile", "rtx3070", "--calibrate", expect=2).err
        self.assertIn("--calibrate needs the device itself", error)


if __name__ == "__main__":
    unittest.main()
