"""Every task from its file to predictions: inside the least budget, the same losses under another plan and after a kill, scores
that show that it has learned, and predictions that point into the text."""
import json
import os
import unittest

from harness import WORDS, SnugTest, read_losses, run, sentence

NAMES = {"PER": ["alice", "bob", "carol"], "LOC": ["paris", "rome"]}
COLOURS = ["red", "green", "blue"]


class Tasks(SnugTest):
    def words(self, count=6):
        """Words with tags: names are entities, some of two words."""
        result = []
        for _ in range(self.rng.randint(2, count)):
            if self.rng.random() < 0.3:
                kind = self.rng.choice(list(NAMES))
                for i in range(self.rng.randint(1, 2)):
                    result.append((self.rng.choice(NAMES[kind]), f"{'I' if i else 'B'}-{kind}"))
                result.append((".", "O"))
            else:
                result.append((self.rng.choice(WORDS), "O"))
        return result

    def conll(self, path, rows, count=6):
        with open(path, "w") as f:
            for _ in range(rows):
                f.writelines(f"{word} {tag}\n" for word, tag in self.words(count))
                f.write("\n")
        return path

    def squad(self, path, rows, longest=8, unanswerable=False):
        """The answer to a question with a colour is the word behind that colour."""
        paragraphs = []
        for i in range(rows):
            colour, answer = self.rng.choice(COLOURS), self.rng.choice(WORDS)
            before = sentence(self.rng, longest)
            context = f"{before} {colour} {answer} {sentence(self.rng, longest)}"
            start = len(before) + 1 + len(colour) + 1
            qa = {"id": str(i), "question": colour, "answers": [{"text": answer, "answer_start": start}]}
            if unanswerable and i % 4 == 0:
                qa = {"id": str(i), "question": next(c for c in COLOURS if c != colour), "answers": [], "is_impossible": True}
            paragraphs.append({"context": context, "qas": [qa]})
        with open(path, "w") as f:
            json.dump({"data": [{"title": "t", "paragraphs": paragraphs}]}, f)
        return path

    def model(self, **more):
        vocabulary = self.path("vocabulary.csv")
        with open(vocabulary, "w") as f:
            f.write("text,label\n")
            for _ in range(300):
                extra = " ".join(self.rng.choice([*NAMES["PER"], *NAMES["LOC"], *COLOURS, "."]) for _ in range(3))
                f.write(f"{sentence(self.rng, 8)} {extra},a\n")
        return self.init(train=vocabulary, vocab=400, **more)

    def train(self, name, model, task, data, *flags, steps=60, memory=None):
        """At the least budget that its plan prints, unless told otherwise."""
        common = ("--model", model, "--task", task, "--train", data, "--validation", data, "--batch-size", 8, "--max-steps", steps, "--learning-rate", 3e-3,
                  "--dropout", 0, "--eval-strategy", "steps", "--eval-steps", steps, *self.cache(), *flags)
        budget = memory or run("plan", *common, "--json").json()["minimum_budget_bytes"]
        result = run("train", *common, "--memory", budget, "--save-strategy", "no", "--output-dir", self.path(name), "--overwrite-output-dir", "--json")
        report = result.json()
        self.assertEqual(report["predicted_arena_bytes"], report["measured_arena_bytes"])
        if memory is None:
            for measured in filter(None, (report["measured_peak_bytes"], result.peak_bytes)):
                self.assertLessEqual(measured, budget)
        return report

    def check_same_losses(self, model, task, data, *flags):
        losses = []
        for name, memory in ("least", None), ("roomy", "4GiB"):
            self.train(name, model, task, data, *flags, steps=6, memory=memory)
            losses.append(list(read_losses(self.path(name)).values())[:6])
        for a, b in zip(*losses):
            self.assertLessEqual(abs(a - b), 1e-4 * max(abs(b), 1e-3))

    def test_tag(self):
        model, data = self.model(), self.conll(self.path("train.conll"), 120)
        self.check_same_losses(model, "tag", data)
        report = self.train("out", model, "tag", data, steps=400)
        self.assertGreater(report["eval_f1"], 0.9)
        measured = run("eval", "--model", self.path("out"), "--data", data, "--json").json()
        self.assertAlmostEqual(measured["f1"], report["eval_f1"], places=6)
        text = "then Alice  met bob in rome ."
        found = run("predict", "--model", self.path("out"), "--text", text, "--json").json()
        for entity in found["entities"]:
            self.assertEqual(text[entity["start"]:entity["end"]], entity["text"])
        self.assertIn(("LOC", "rome"), [(entity["type"], entity["text"]) for entity in found["entities"]])
        self.assertEqual([word["word"] for word in found["words"]], text.split())
        with open(os.path.join(self.path("out"), "config.json")) as f:
            self.assertEqual(json.load(f)["architectures"], ["BertForTokenClassification"])

    def quick(self, task, data, *flags):
        """A folder that has the task's head and has learned next to nothing."""
        model = self.path("model")
        self.train(task, model if os.path.exists(model) else self.model(), task, data, *flags, steps=2, memory="1GiB")
        return self.path(task)

    def test_words_without_a_tag_count_for_nothing(self):
        sentences = [list(zip(*self.words())) for _ in range(40)]
        tagged = [[-100 if self.rng.random() < 0.4 else tag for tag in tags] for _, tags in sentences]
        tagged[3] = [-100] * len(tagged[3])
        for name, all_tags in ("some", tagged), ("all", [tags for _, tags in sentences]):
            with open(self.path(f"{name}.jsonl"), "w") as f:
                for (words, _), tags in zip(sentences, all_tags):
                    f.write(json.dumps({"tokens": words, "ner_tags": tags}) + "\n")
        model, some = self.quick("tag", self.path("all.jsonl")), self.path("some.jsonl")
        measured = run("eval", "--model", model, "--data", some, "--json").json()
        self.assertNotAlmostEqual(measured["loss"], run("eval", "--model", model, "--data", self.path("all.jsonl"), "--json").json()["loss"], places=6)
        predicted = run("predict", "--model", model, "--input", some, "--json").json()["predictions"]
        pairs = [(tag, word["label"]) for tags, row in zip(tagged, predicted) for tag, word in zip(tags, row["words"]) if tag != -100]
        self.assertAlmostEqual(measured["accuracy"], sum(a == b for a, b in pairs) / len(pairs), places=12)
        self.assertEqual(measured["examples"], 40)
        report = self.train("again", self.path("model"), "tag", some, steps=400, memory="1GiB")
        self.assertGreater(report["eval_f1"], 0.9)

    def test_predictions_read_words_as_evaluation_does(self):
        data = self.conll(self.path("train.conll"), 20)
        model = self.quick("tag", data)
        with open(data) as f:
            columns = f.read()
        for name in "columns.txt", "columns.tsv":
            with open(self.path(name), "w") as f:
                f.write(columns.replace(" ", "\t") if name.endswith("tsv") else columns)
        expected = run("predict", "--model", model, "--input", data, "--json").out
        for name in "columns.txt", "columns.tsv":
            with self.subTest(name):
                found = run("predict", "--model", model, "--input", self.path(name), "--json")
                self.assertEqual(found.out, expected)
                self.assertIn("read as snug eval reads them", found.err)
        with open(self.path("texts.txt"), "w") as f:
            f.write("alice met bob\nin rome\n")
        texts = run("predict", "--model", model, "--input", self.path("texts.txt"), "--json").json()["predictions"]
        self.assertEqual([[word["word"] for word in row["words"]] for row in texts], [["alice", "met", "bob"], ["in", "rome"]])

    def test_tags_of_long_texts_by_windows(self):
        model, data = self.model(), self.conll(self.path("train.conll"), 20, count=60)
        report = self.train("out", model, "tag", data, "--max-length", 24, "--stride", 8, steps=500)
        self.assertGreater(report["eval_f1"], 0.85)
        with open(data) as f:
            lines = f.readlines()
        measured = run("eval", "--model", self.path("out"), "--data", data, "--max-length", 24, "--stride", 8, "--json").json()
        self.assertEqual(measured["examples"], sum(not line.strip() for line in lines))  # windows of a text count once
        self.assertEqual(sum(row["support"] for row in measured["per_entity"] if row["entity"] in NAMES),
                         sum(" B-" in line for line in lines))

    def test_questions(self):
        model, data = self.model(hidden=64), self.squad(self.path("train.json"), 160)
        self.check_same_losses(model, "qa", data)
        report = self.train("out", model, "qa", data, "--max-length", 32, "--stride", 8, steps=400)
        self.assertGreater(report["eval_f1"], 60)
        measured = run("eval", "--model", self.path("out"), "--data", data, "--max-length", 32, "--stride", 8, "--json").json()
        self.assertAlmostEqual(measured["exact_match"], report["eval_exact_match"], places=4)
        context = "time red water day"
        found = run("predict", "--model", self.path("out"), "--question", "red", "--context", context, "--json").json()
        self.assertEqual(len(found["answers"]), min(5, len(found["answers"])))
        for answer in found["answers"]:
            self.assertEqual(context[answer["start"]:answer["end"]], answer["text"])

    def test_questions_that_leave_no_room_for_their_context(self):
        model = self.quick("qa", self.squad(self.path("train.json"), 20))
        long = {"id": "long one", "question": "red " * 30, "answers": [{"text": "time", "answer_start": 0}]}
        short = {"id": "short", "question": "red", "answers": [{"text": "time", "answer_start": 0}]}
        squad, lines = self.path("test.json"), self.path("test.jsonl")
        with open(squad, "w") as f:
            json.dump({"data": [{"title": "t", "paragraphs": [{"context": "time red " * 30, "qas": [short, long, short]}]}]}, f)
        with open(lines, "w") as f:
            for row in (short, long):
                f.write(json.dumps({**row, "context": "time red " * 30}) + "\n")
        flags = "--max-length", 48, "--stride", 20
        for data, place in (squad, "test.json: line 1: question \"long one\": the first text has"), (lines, "test.jsonl: line 2: question \"long one\":"):
            with self.subTest(data):
                self.assertIn(place, run("eval", "--model", model, "--data", data, *flags, expect=3).err)
                self.assertIn(place, run("predict", "--model", model, "--input", data, *flags, expect=3).err)
        measured = run("eval", "--model", model, "--data", squad, *flags, "--skip-bad-rows", "--json")
        self.assertIn("test.json: 1 row is wrong and left out", measured.err)
        self.assertEqual((measured.json()["examples"], measured.json()["long_texts"]), (2, 2))
        with open(lines, "w") as f:
            f.write(json.dumps({**long, "context": "time red " * 30}) + "\n")
        self.assertIn("all 1 rows are wrong; the first: ", run("eval", "--model", model, "--data", lines, *flags, "--skip-bad-rows", expect=3).err)

    def test_predictions_refuse_texts_that_do_not_fit_the_task(self):
        answers = self.quick("qa", self.squad(self.path("train.json"), 20))
        self.assertIn("--context", run("predict", "--model", answers, "--question", "red", expect=2).err)
        tags = self.quick("tag", self.conll(self.path("train.conll"), 20))
        self.assertIn("--text-pair", run("predict", "--model", tags, "--text", "a", "--text-pair", "b", expect=2).err)
        self.assertIn("--text-pair-column", run("predict", "--model", tags, "--input", self.path("train.conll"), "--text-pair", "b", expect=2).err)

    def test_questions_without_answers(self):
        model, data = self.model(), self.squad(self.path("train.json"), 40, unanswerable=True)
        report = self.train("out", model, "qa", data, steps=20)
        for name in "eval_exact", "eval_f1", "eval_HasAns_f1", "eval_NoAns_f1", "eval_best_f1":
            self.assertIn(name, report)

    def labelled(self, name, rows, label):
        with open(self.path(name), "w") as f:
            f.write("text,label\n")
            for _ in range(rows):
                colours = [colour for colour in COLOURS if self.rng.random() < 0.5]
                f.write(f"\"{sentence(self.rng, 3)} {' '.join(colours)} end\",\"{label(colours)}\"\n")
        return self.path(name)

    def test_several_labels(self):
        model, data = self.model(), self.labelled("train.csv", 150, ",".join)
        self.check_same_losses(model, "multi-label", data)
        report = self.train("out", model, "multi-label", data, "--learning-rate", 1e-3, steps=600)
        self.assertGreater(report["eval_f1"], 0.9)
        found = run("predict", "--model", self.path("out"), "--text", "time red blue end", "--json").json()
        self.assertEqual(sorted(found["labels"]), ["blue", "red"])
        lists = self.path("lists.jsonl")
        with open(lists, "w") as f:
            f.writelines(json.dumps({"text": f"time {colour} end", "labels": [colour]}) + "\n" for colour in COLOURS)
        self.assertEqual(run("eval", "--model", self.path("out"), "--data", lists, "--json").json()["examples"], 3)

    def test_numbers(self):
        model, data = self.model(), self.labelled("train.csv", 150, len)
        self.check_same_losses(model, "regress", data)
        report = self.train("out", model, "regress", data, steps=150)
        self.assertGreater(report["eval_pearson"], 0.9)
        few, many = (run("predict", "--model", self.path("out"), "--text", text, "--json").json()["value"]
                     for text in ("time end", "time red green blue end"))
        self.assertLess(few + 1, many)

    def test_gpt2_tells_classes_apart(self):
        model = self.model(model_type="gpt2")
        data = self.labelled("train.csv", 150, lambda colours: "red" if "red" in colours else "other")
        report = self.train("out", model, "classify", data, steps=100)
        self.assertGreater(report["eval_accuracy"], 0.9)
        # An empty text has no token of GPT-2's: it is read as the end-of-text token, whatever lies beside it.
        with open(self.path("empty.jsonl"), "w") as f:
            f.writelines(json.dumps({"text": text}) + "\n" for text in ("time red end", "", "time end", "", "<|endoftext|>"))
        given = ["--model", self.path("out"), "--input", self.path("empty.jsonl")]
        predicted = run("predict", *given, "--json").json()["predictions"]
        embedded = [json.loads(line) for line in run("embed", *given).out.splitlines()]
        for said in [list(row["scores"].values()) for row in predicted], [row["embedding"] for row in embedded]:
            far = [max(abs(a - b) for a, b in zip(said[1], other)) for other in said]
            self.assertLess(max(far[3], far[4]), 1e-5)
            self.assertGreater(far[0], 1e-3)

    def test_weights_smoothing_and_long_texts(self):
        model = self.model()
        data = self.labelled("train.csv", 120, lambda colours: "red" if "red" in colours else "other")
        plain = self.train("plain", model, "classify", data, steps=4)["train_loss"]
        for flags in (["--class-weights", "balanced"], ["--class-weights", "1,5"], ["--label-smoothing-factor", 0.2]):
            with self.subTest(flags):
                self.assertNotEqual(self.train("other", model, "classify", data, *flags, steps=4)["train_loss"], plain)
        words = self.conll(self.path("train.conll"), 40)
        plain = self.train("plain", model, "tag", words, steps=4)["train_loss"]
        self.assertNotEqual(self.train("other", model, "tag", words, "--class-weights", "balanced", steps=4)["train_loss"], plain)
        for keep in "head", "tail", "middle", "windows":
            with self.subTest(keep):
                said = run("train", "--model", model, "--train", data, "--max-length", 6, "--long-texts", keep, "--max-steps", 2, "--save-strategy", "no",
                           *self.cache(), "--output-dir", self.path("long"), "--overwrite-output-dir").err
                self.assertIn("texts have more than 6 tokens", said)

    def test_the_metric_for_the_best_model_is_checked_before_the_first_step(self):
        model = self.model()
        questions, numbers = self.squad(self.path("train.json"), 20, unanswerable=True), self.labelled("numbers.csv", 20, len)
        classes = self.labelled("train.csv", 20, lambda colours: len(colours) % 2)
        table = [("classify", classes, "eval_f1_macro", "pearson"), ("classify", classes, "roc_auc", "perplexity"),
                 ("regress", numbers, "spearmanr", "accuracy"), ("tag", self.conll(self.path("train.conll"), 20), "f1", "exact"),
                 ("qa", questions, "HasAns_f1", "mse"), ("qa", questions, "best_exact", "roc_auc"), ("clm", numbers, "perplexity", "f1")]
        for task, data, good, bad in table:
            with self.subTest(task=task, good=good, bad=bad):
                model_of_task = self.init("gpt2", train=numbers, model_type="gpt2") if task == "clm" else model
                common = ("train", "--model", model_of_task, "--task", task, "--train", data, "--validation", data, "--batch-size", 8, "--max-steps", 2,
                          "--eval-strategy", "steps", "--eval-steps", 2, "--save-strategy", "no", *self.cache(), "--overwrite-output-dir")
                refused = run(*common, "--metric-for-best-model", bad, "--output-dir", self.path("refused"), expect=2).err
                self.assertIn(f"--metric-for-best-model {bad} is not measured; there are ", refused)
                self.assertIn(good.removeprefix("eval_"), refused)
                self.assertFalse(os.path.exists(self.path("refused/metrics.jsonl")), "no step was logged")
                run(*common, "--metric-for-best-model", good, "--output-dir", self.path("best"))
        one_class = self.labelled("one.csv", 20, lambda colours: 1)
        refused = run("train", "--model", model, "--train", classes, "--validation", one_class, "--metric-for-best-model", "roc_auc", "--max-steps", 2,
                      "--eval-strategy", "steps", "--eval-steps", 2, *self.cache(), "--output-dir", self.path("one"), expect=2).err
        self.assertIn("roc_auc needs two classes", refused)

    def test_refusals_say_what_there_is(self):
        model = self.model()
        words, csv = self.conll(self.path("train.conll"), 10), self.labelled("train.csv", 20, len)
        table = [(["--task", "tags", "--train", words], 2, "expected classify, multi-label, regress, tag, qa, clm, mlm"),
                 (["--task", "qa", "--train", words], 3, "conll"),
                 (["--task", "regress", "--train", self.labelled("names.csv", 9, lambda c: c[0] if c else "none")], 3, "expected a number"),
                 (["--task", "regress", "--train", csv, "--class-weights", "balanced"], 2, "--class-weights is for --task classify and tag"),
                 (["--task", "classify", "--train", csv, "--class-weights", "1,x"], 2, "expected balanced, or"),
                 (["--task", "regress", "--train", csv, "--label-smoothing-factor", 0.1], 2, "--label-smoothing-factor is for"),
                 (["--task", "classify", "--train", csv, "--long-texts", "most"], 2, "expected head, tail, middle, windows"),
                 (["--task", "classify", "--train", csv, "--stride", 4], 2, "--stride is for windows"),
                 (["--task", "tag", "--train", words, "--long-texts", "head"], 2, "reads long texts in windows")]
        for flags, code, message in table:
            with self.subTest(flags):
                self.assertIn(message, run("plan", "--model", model, *flags, *self.cache(), expect=code).err)
        untrained = run("predict", "--model", model, "--text", "a", expect=3).err
        self.assertIn("has not been trained for a task", untrained)


if __name__ == "__main__":
    unittest.main()
