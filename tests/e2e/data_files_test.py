"""Several files, patterns, weights, splits, limits, rows that are wrong, and reports on data."""
import json
import os
import unittest

from harness import SnugTest, run, write_csv


def checksums(folder):
    """The sum of the rows' checksums over each epoch, by its first step; and how many examples it had."""
    epochs = {}
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        for line in map(json.loads, f):
            if "rows_checksum" not in line:
                continue
            epoch = int(line["epoch"] - 1e-9)
            total, examples = epochs.get(epoch, (0, 0))
            epochs[epoch] = ((total + int(line["rows_checksum"], 16)) % 2**64, examples + line["examples"])
    return epochs


class DataFiles(SnugTest):
    def setUp(self):
        super().setUp()
        self.model = self.init()

    def train(self, *args, output="out", expect=0, env=None):
        return run("train", "--model", self.model, "--batch-size", 16, "--num-train-epochs", 1, "--output-dir", self.path(output),
                   *self.cache(), *args, expect=expect, env=env)

    def test_files_and_patterns_share_labels_and_caches(self):
        write_csv(self.path("part-1.csv"), 60, self.rng, labels=("no", "yes"))
        write_csv(self.path("part-2.csv"), 40, self.rng, labels=("maybe",))
        self.train("--train", self.path("part-*.csv"))
        with open(self.path("out", "config.json")) as f:
            self.assertEqual(list(json.load(f)["id2label"].values()), ["maybe", "no", "yes"])
        self.assertEqual(sum(e for _, e in checksums(self.path("out")).values()), 100)
        caches = sorted(os.listdir(self.path("cache")))
        write_csv(self.path("more.csv"), 20, self.rng)
        self.train("--train", self.path("part-1.csv"), "--train", self.path("part-2.csv") + "," + self.path("more.csv"), output="out2")
        added = set(os.listdir(self.path("cache"))) - set(caches)
        self.assertEqual(len([name for name in added if name.startswith("rows-")]), 1)
        self.assertIn("no file has such a name", self.train("--train", self.path("absent-*.csv"), output="no", expect=3).err)
        with open(self.path("bad.csv"), "w") as f:
            f.write("text,label\nfine,yes\nonly one column\n")
        error = self.train("--train", self.path("part-1.csv") + "," + self.path("bad.csv"), output="no", expect=3).err
        self.assertIn("bad.csv: line 3: 1 column", error)

    def test_every_row_is_seen_once_an_epoch_also_across_a_kill(self):
        data = write_csv(self.path("train.csv"), 500, self.rng)
        flags = ["--train", data, "--num-train-epochs", 3, "--save-steps", 7]
        self.train(*flags)
        expected = checksums(self.path("out"))
        self.assertEqual([e for _, e in expected.values()], [500] * 3)
        self.assertEqual(len({total for total, _ in expected.values()}), 1)  # the same rows, in three orders
        self.train(*flags, output="killed", expect=-9, env={"SNUG_TEST_KILL_POINT": "checkpoint:after_rename:5"})
        self.train(*flags, "--resume-from-checkpoint", "latest", output="killed")
        self.assertEqual(checksums(self.path("killed")), expected)

    def test_weights_decide_the_shares(self):
        write_csv(self.path("a.csv"), 300, self.rng, labels=("no", "yes"))
        write_csv(self.path("b.csv"), 20, self.rng, labels=("no", "yes"))
        train = f"{self.path('a.csv')}:1,{self.path('b.csv')}:1"
        self.train("--train", train)
        self.assertEqual(sum(e for _, e in checksums(self.path("out")).values()), 320)
        error = self.train("--train", f"{self.path('a.csv')}:1,{self.path('b.csv')}", output="no", expect=2).err
        self.assertIn("give a weight to every file, or to none", error)

    def test_limits_and_a_split_by_seed(self):
        data = write_csv(self.path("train.csv"), 400, self.rng)
        self.train("--train", data, "--max-train-samples", 50, "--validation", data, "--max-eval-samples", 10)
        self.assertEqual(sum(e for _, e in checksums(self.path("out")).values()), 50)
        results = []
        for output, seed in (("one", 1), ("again", 1), ("two", 2)):
            self.train("--train", data, "--validation-split-percentage", 25, "--seed", seed, output=output)
            self.assertEqual(sum(e for _, e in checksums(self.path(output)).values()), 300)
            with open(self.path(output, "run.json")) as f:
                results.append({name: value for name, value in json.load(f).items() if name.startswith("eval_")})
            self.assertIn("eval_loss", results[-1])
        self.assertEqual(results[0], results[1])
        self.assertNotEqual(results[0], results[2])

    def test_bad_rows_are_left_out_counted_and_listed(self):
        data = write_csv(self.path("train.csv"), 100, self.rng)
        with open(data, "a") as f:
            f.write("one column\ntext,1.5\nno label,\ngood text,yes\n")
        self.assertIn("line 102: 1 column", self.train("--train", data, expect=3).err)
        for output in ("out", "from-the-cache"):
            result = self.train("--train", data, "--skip-bad-rows", "--overwrite-output-dir", output=output)
            self.assertIn("3 rows are wrong and left out", result.err)
            with open(self.path(output, "skipped.jsonl")) as f:
                skipped = [json.loads(line) for line in f]
            self.assertEqual(sorted(row["line"] for row in skipped), [102, 103, 104])
            self.assertTrue(all(row["file"] == data and row["reason"] for row in skipped))
            self.assertEqual(sum(e for _, e in checksums(self.path(output)).values()), 101)
        report = run("eval", "--model", self.path("out"), "--data", data, "--skip-bad-rows", "--json")
        self.assertEqual(report.json()["examples"], 101)


    def test_wrong_rows_of_several_files_are_not_the_first_ones(self):
        good = write_csv(self.path("aa.csv"), 30, self.rng)
        with open(self.path("bad.csv"), "w") as f:
            f.write('text,label\ntime,yes\n"day,no\nyear,no\n')
        said = self.train("--train", f"{good},{self.path('bad.csv')}", "--skip-bad-rows", "--overwrite-output-dir").err
        self.assertIn("2 files: 1 row", said)
        with open(self.path("out", "skipped.jsonl")) as f:
            skipped = [json.loads(line) for line in f]
        self.assertEqual([(row["file"], row["line"]) for row in skipped], [(self.path("bad.csv"), 3)])
        report = run("eval", "--model", self.path("out"), "--data", f"{good},{self.path('bad.csv')}", "--skip-bad-rows", "--json")
        self.assertIn("2 files: 1 row is wrong and left out", report.err)
        self.assertNotIn("aa.csv:", report.err)
        alone = run("eval", "--model", self.path("out"), "--data", self.path("bad.csv"), "--skip-bad-rows")
        self.assertIn("bad.csv: 1 row is wrong and left out", alone.err)


class Reports(SnugTest):
    def data(self, contents, *flags, **more):
        with open(self.path("x.csv"), "w") as f:
            f.write("text,label\n" + contents)
        return run("data", self.path("x.csv"), *flags, "--json", **more)

    def test_labels_that_training_refuses_are_faults(self):
        for rows, fault in (("a,0\nb,-1\nc,1\n", 'label "-1" marks rows without a label'), ("a,-1\nb,-1\n", 'label "-1" marks rows'),
                            ("a,yes\nb,yes\n", 'every row has the label "yes"')):
            with self.subTest(rows):
                self.assertIn(fault, self.data(rows).json()["problems"][0])
        for rows in ("a,-1\nb,1\n", "a,no\nb,yes\n", "a,\nb,\n"):
            with self.subTest(rows):
                self.assertEqual(self.data(rows).json()["problems"], [])
        with open(self.path("validation.csv"), "w") as f:
            f.write("text,label\na,yes\nb,maybe\n")
        report = self.data("a,no\nb,yes\n", "--validation", self.path("validation.csv")).json()
        self.assertIn('label "maybe" is not in the training files', report["validation"]["problems"][0])
        self.assertEqual(len(report["validation"]["problems"]), 1)

    def test_a_label_counts_once_a_row(self):
        report = self.data('a,"x,y,x"\nb,"x,x"\n', "--task", "multi-label").json()
        self.assertEqual(report["labels"], {"x": 2, "y": 1})

    def test_lengths_need_a_model(self):
        self.assertIn("--model", self.data("a,0\nb,1\n", "--max-length", 16, expect=2).err)

    def test_counts_lengths_duplicates_and_bad_rows(self):
        model = self.init()
        with open(self.path("train.csv"), "w") as f:
            f.write("text,label\n" + "time year,yes\n" * 3 + "time year,no\npeople way day,no\nwrong\n" + "day " * 40 + ",no\n")
        with open(self.path("validation.csv"), "w") as f:
            f.write("text,label\ntime year,yes\nman thing,no\n")
        flags = [self.path("train.csv"), "--validation", self.path("validation.csv"), "--model", model, "--max-length", 16]
        report = run("data", *flags, "--json").json()
        self.assertEqual(report["rows"], 6)
        self.assertEqual(report["bad_rows"], 1)
        self.assertIn("line 7: 1 column", report["first_bad_rows"][0])
        self.assertEqual(report["labels"], {"no": 3, "yes": 3})
        self.assertEqual((report["duplicates"], report["contradictions"]), (3, 1))
        self.assertEqual(report["tokens"]["longer_rows"], 1)
        self.assertEqual(sum(count for _, count in report["tokens"]["rows_by_length"]), 6)
        self.assertEqual((report["validation"]["rows"], report["shared_rows"]), (2, 1))
        text = run("data", *flags).out
        for part in ("rows           6", "bad rows       1", "50.0 %", "█", "longer than 16    1 rows", "in both        1 validation rows"):
            self.assertIn(part, text)

    def test_words_questions_and_scores(self):
        with open(self.path("x.conll"), "w") as f:
            f.write("EU B-ORG\nrejects O\n\ncall O\n")
        report = run("data", self.path("x.conll"), "--json").json()
        self.assertEqual((report["rows"], report["words"], report["labels"]), (2, 3, {"B-ORG": 1, "O": 2}))
        squad = {"data": [{"title": "t", "paragraphs": [{"context": "A cat sat.", "qas": [
            {"id": "1", "question": "Who sat?", "answers": [{"text": "A cat", "answer_start": 0}], "is_impossible": False},
            {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
            {"id": "3", "question": "Where?", "answers": [{"text": "mat", "answer_start": 2}], "is_impossible": False}]}]}]}
        with open(self.path("x.json"), "w") as f:
            json.dump(squad, f)
        report = run("data", self.path("x.json"), "--task", "qa", "--json").json()
        self.assertEqual((report["rows"], report["answered"], report["unanswerable"], report["bad_rows"]), (2, 1, 1, 1))
        with open(self.path("x.tsv"), "w") as f:
            f.write("sentence1\tsentence2\tscore\na\tb\t1.5\nc\td\t4.5\n")
        report = run("data", self.path("x.tsv"), "--task", "regress", "--json").json()
        self.assertEqual(report["scores"], {"least": 1.5, "most": 4.5, "mean": 3.0})

    def test_duplicates_of_many_rows_take_bounded_memory(self):
        with open(self.path("train.csv"), "w") as f:
            f.write("text,label\n")
            for i in range(700_000):  # more hashes than fit the buffer
                f.write(f"row {i % 500_000},{i % 2}\n")
        report = run("data", self.path("train.csv"), "--json", *self.cache()).json()
        self.assertEqual((report["rows"], report["duplicates"]), (700_000, 200_000))


if __name__ == "__main__":
    unittest.main()
