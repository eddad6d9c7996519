"""snug eval from outside: its numbers against those recomputed from snug predict, tables and matrix, in text and as JSON."""
import csv
import json
import os
import unittest

from harness import SnugTest, run, write_csv


class Evaluation(SnugTest):
    def trained(self, labels, steps=30, validation_rows=None):
        data = write_csv(self.path("train.csv"), 200, self.rng, labels=labels)
        more = []
        if validation_rows:
            more = ["--validation", write_csv(self.path("validation.csv"), validation_rows, self.rng, labels=labels)]
        run("train", "--model", self.init(), "--train", data, *more, "--batch-size", 16, "--max-steps", steps, "--learning-rate", 1e-3,
            "--output-dir", self.path("out"), *self.cache())
        return self.path("out")

    def measure(self, labels, **more):
        """Evaluation as JSON and as text, and what was expected with the scores of each row."""
        model = self.trained(labels, **more)
        data = write_csv(self.path("test.csv"), 150, self.rng, labels=labels)
        as_json = run("eval", "--model", model, "--data", data, "--json").json()
        as_text = run("eval", "--model", model, "--data", data).out
        predictions = run("predict", "--model", model, "--input", data, "--json").json()["predictions"]
        with open(data) as f:
            expected = [row["label"] for row in csv.DictReader(f)]
        return as_json, as_text, expected, predictions

    def test_two_classes(self):
        measured, text, expected, predictions = self.measure(("no", "yes"))
        pairs = list(zip(expected, (p["label"] for p in predictions)))
        self.assertEqual(measured["confusion_matrix"], [[pairs.count((e, p)) for p in ("no", "yes")] for e in ("no", "yes")])
        hits = pairs.count(("yes", "yes"))
        predicted = sum(p == "yes" for _, p in pairs)
        self.assertAlmostEqual(measured["accuracy"], sum(e == p for e, p in pairs) / len(pairs), places=12)
        self.assertAlmostEqual(measured["recall"], hits / expected.count("yes"), places=12)
        self.assertAlmostEqual(measured["precision"], hits / predicted if predicted else 0, places=12)
        self.assertAlmostEqual(measured["f1"], 2 * hits / (predicted + expected.count("yes")), places=12)
        positive = [p["scores"]["yes"] for e, p in zip(expected, predictions) if e == "yes"]
        negative = [p["scores"]["yes"] for e, p in zip(expected, predictions) if e == "no"]
        area = sum((a > b) + (a == b) / 2 for a in positive for b in negative) / (len(positive) * len(negative))
        self.assertAlmostEqual(measured["roc_auc"], area, delta=1e-3)  # micro-batches may round differently
        self.assertEqual([row["class"] for row in measured["per_class"]], ["no", "yes"])
        self.assertEqual(sum(row["support"] for row in measured["per_class"]), 150)
        for part in ("accuracy", "macro average", "confusion matrix", "roc_auc"):
            self.assertIn(part, text)

    def test_many_classes_are_shown_by_their_mistakes(self):
        labels = tuple(f"class {i}" for i in range(15))
        measured, text, expected, predictions = self.measure(labels)
        self.assertEqual(len(measured["confusion_matrix"]), 15)
        self.assertEqual(sum(map(sum, measured["confusion_matrix"])), 150)
        self.assertIn("most frequent mistakes", text)
        self.assertNotIn("confusion matrix", text)

    def test_long_texts_are_counted(self):
        model = self.trained(("no", "yes"), steps=2)
        for name, lengths in ("a.csv", (3, 30, 40)), ("b.csv", (50, 4)):
            with open(self.path(name), "w") as f:
                f.write("text,label\n" + "".join(f"{'time ' * n},no\n" for n in lengths))
        both = f"{self.path('a.csv')},{self.path('b.csv')}"
        for keep, what in (("head", "the rest is left out"), ("windows", "windows that share 4 tokens are read")):
            flags = ["--max-length", 12, "--long-texts", keep]
            measured = run("eval", "--model", model, "--data", both, *flags, "--json")
            self.assertEqual(measured.json()["long_texts"], 3)
            self.assertIn(f"2 files: 3 texts have more than 12 tokens; {what}", measured.err)
            self.assertIn(f"a.csv: 2 texts have more than 12 tokens; {what}", run("predict", "--model", model, "--input", self.path("a.csv"), *flags).err)
            self.assertIn("--text: 1 text has more than 12 tokens", run("predict", "--model", model, "--text", "time " * 20, *flags).err)
        measured = run("eval", "--model", model, "--data", both, "--json")
        self.assertEqual(measured.json()["long_texts"], 0)
        self.assertNotIn("more than", measured.err)

    def config(self, folder, **changes):
        """Changes its config.json; None takes a key out."""
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = {k: v for k, v in {**json.load(f), **changes}.items() if v is not None}
        with open(path, "w") as f:
            json.dump(config, f)

    def test_two_classes_that_are_not_named(self):
        model = self.trained(("no", "yes"), steps=2)
        self.config(model, id2label=None, label2id=None, num_labels=None)
        found = run("predict", "--model", model, "--text", "time", "--json").json()
        self.assertEqual(list(found["scores"]), ["LABEL_0", "LABEL_1"])
        self.config(model, num_labels=3)
        refused = run("predict", "--model", model, "--text", "time", expect=3).err
        self.assertIn("classifier.weight", refused)
        self.assertNotIn("--ignore-mismatched-sizes", refused)

    def test_training_reports_the_same_names(self):
        self.trained(("a", "b", "c"), steps=20, validation_rows=40)
        with open(self.path("out", "run.json")) as f:
            report = json.load(f)
        measured = run("eval", "--model", self.path("out"), "--data", self.path("validation.csv"), "--json").json()
        for name in ("accuracy", "f1", "f1_macro", "f1_weighted", "matthews_correlation", "roc_auc"):
            self.assertAlmostEqual(report["eval_" + name], measured[name], delta=1e-3)


if __name__ == "__main__":
    unittest.main()
