"""A small model learns from a larger one: the three promises, what the teacher adds, and what is wrong with a teacher."""
import json
import os
import shutil
import unittest

from harness import MIB, SnugTest, read_losses, run, sentence, write_csv


class Distillation(SnugTest):
    def setUp(self):
        super().setUp()
        self.data = write_csv(self.path("train.csv"), 400, self.rng, longest=20)
        self.text = self.path("text.txt")
        with open(self.text, "w") as f:
            f.writelines(sentence(self.rng, 14) + "\n" for _ in range(500))

    def train(self, name, model, data, *flags, steps=10, batch=16, expect=0):
        result = run("train", "--model", model, "--train", data, "--batch-size", batch, "--max-steps", steps, "--learning-rate", 1e-3,
                     "--output-dir", self.path(name), *self.cache(), *flags, expect=expect)
        if expect != 0:
            return result
        with open(self.path(name, "run.json")) as f:
            return json.load(f)

    def pair(self, kind="bert", data=None, *flags, steps=3):
        """A student and a trained teacher of other sizes with one vocabulary."""
        source = self.text if kind != "bert" else self.data
        sizes = dict(model_type=kind, train=source, vocab=400 if kind != "bert" else 200)
        student = self.init(f"{kind}-student", hidden=32, layers=2, **sizes)
        large = self.init(f"{kind}-large", hidden=64, layers=3, seed=7, **sizes)
        teacher = self.path(f"{kind}-teacher")
        self.train(teacher, large, data or self.data, *flags, steps=steps)
        return student, teacher

    def cases(self):
        yield (*self.pair(), self.data, [])
        yield (*self.pair("gpt2", self.text, "--block-size", 32), self.text, ["--block-size", 32])
        yield (*self.pair("roberta", self.text, "--task", "mlm"), self.text, ["--task", "mlm"])


class Promises(Distillation):
    def test_the_plan_is_the_run(self):
        for student, teacher, data, flags in self.cases():
            with self.subTest(student=student):
                flags = [*flags, "--teacher", teacher]
                plan = run("plan", "--model", student, "--train", data, "--batch-size", 16, *flags, *self.cache(), "--json").json()
                alone = run("plan", "--model", student, "--train", data, "--batch-size", 16, *flags[:-2], *self.cache(), "--json").json()
                least, most = plan["minimum_budget_bytes"], plan["peak_bytes"]
                self.assertEqual(sum(item["bytes"] for item in plan["items"]), most)
                weights = os.path.getsize(os.path.join(teacher, "model.safetensors"))
                self.assertGreater(plan["arena_bytes"], alone["arena_bytes"] + 0.9 * weights, "the teacher is in the plan")
                for share in 0, self.rng.random(), 1:
                    budget = int(least + share * max(0, most - least))
                    report = self.train(f"memory-{self.rng.random()}", student, data, *flags, "--memory", budget, steps=3)
                    self.assertEqual(report["measured_arena_bytes"], report["predicted_arena_bytes"])
                    self.assertLessEqual(report["measured_peak_bytes"], budget)
                    self.assertLessEqual(abs(report["measured_peak_bytes"] / report["predicted_peak_bytes"] - 1), 0.05)
                self.train("no", student, data, *flags, "--memory", least - MIB, expect=4)

    def test_an_int8_teacher_takes_less(self):
        student, teacher = self.pair("gpt2", self.text, "--block-size", 32)
        run("quantize", "--model", teacher, "--output-dir", self.path("int8"))
        flags = ["--block-size", 32, "--recompute", "none", "--micro-batch-tokens", 32]
        exact = self.train("exact", student, self.text, *flags, "--teacher", teacher)
        losses = read_losses(self.path("exact"))
        for name, more in ("folder", ["--teacher", self.path("int8")]), ("flag", ["--teacher", teacher, "--quantize", "int8"]):
            report = self.train(name, student, self.text, *flags, *more)
            self.assertEqual(report["measured_arena_bytes"], report["predicted_arena_bytes"])
            weights = os.path.getsize(os.path.join(teacher, "model.safetensors"))
            self.assertLess(report["measured_arena_bytes"], exact["measured_arena_bytes"] - 0.4 * weights)
            for step, loss in read_losses(self.path(name)).items():
                self.assertAlmostEqual(loss, losses[step], delta=0.02 * losses[step])

    def test_memory_never_changes_the_result(self):
        for student, teacher, data, flags in self.cases():
            with self.subTest(student=student):
                losses = []
                for i, more in enumerate((["--recompute", "none"], ["--recompute", "none", "--micro-batch-tokens", 64], ["--recompute", "all"])):
                    name = f"{os.path.basename(student)}-{i}"
                    self.train(name, student, data, "--teacher", teacher, "--dropout", 0.1, *flags, *more)
                    losses.append(read_losses(self.path(name)))
                self.assertEqual(losses[0], losses[2], "recomputing gives the same bits")
                self.assertLessEqual(max(abs(losses[0][s] - losses[1][s]) / losses[0][s] for s in losses[0]), 2e-5)
                self.assertNotEqual(losses[0], losses[1], "packed differently, so rounded differently: else nothing was tested")

    def test_a_resumed_run_continues_the_same_curve(self):
        student, teacher = self.pair("gpt2", self.text, "--block-size", 32)
        flags = ["--teacher", teacher, "--block-size", 32, "--save-steps", 5]
        self.train("whole", student, self.text, *flags)
        self.train("parts", student, self.text, *flags)
        shutil.rmtree(self.path("parts", "checkpoints", "step-10"))
        os.remove(self.path("parts", "model.safetensors"))
        self.train("parts", student, self.text, *flags, "--resume-from-checkpoint", "latest")
        with open(self.path("whole", "model.safetensors"), "rb") as a, open(self.path("parts", "model.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        for changed, said in ((["--distill-alpha", 0.25], "--distill-alpha"), (["--distill-temperature", 3], "--distill-temperature"),
                              (["--teacher", self.path("gpt2-large")], "another teacher")):
            with self.subTest(changed=changed):
                error = self.train("parts", student, self.text, *flags, *changed, "--resume-from-checkpoint", "latest", expect=2).err
                self.assertIn(said, error)

    def test_a_resumed_run_has_the_teacher_it_had(self):
        student, teacher = self.pair()
        # Labels are part of how data is read, and a fresh student takes its teacher's: here in another order.
        with open(os.path.join(teacher, "config.json")) as f:
            config = json.load(f)
        config["id2label"], config["label2id"] = {"0": "yes", "1": "no"}, {"yes": 0, "no": 1}
        with open(os.path.join(teacher, "config.json"), "w") as f:
            json.dump(config, f)
        for name, before, after, said in (("plain", [], ["--teacher", teacher], "without a teacher"),
                                          ("taught", ["--teacher", teacher], [], "there is no --teacher")):
            with self.subTest(name):
                self.train(name, student, self.data, *before, steps=2)
                error = self.train(name, student, self.data, *after, "--resume-from-checkpoint", "latest", steps=2, expect=2).err
                self.assertIn(said, error)


class Teaching(Distillation):
    def test_without_a_share_the_teacher_changes_nothing(self):
        for student, teacher, data, flags in self.cases():
            with self.subTest(student=student):
                flags = [*flags, "--recompute", "none", "--micro-batch-tokens", 128]
                self.train("plain", student, data, *flags, "--overwrite-output-dir")
                self.train("silent", student, data, *flags, "--teacher", teacher, "--distill-alpha", 0, "--overwrite-output-dir")
                self.assertEqual(read_losses(self.path("plain")), read_losses(self.path("silent")))
                self.train("half", student, data, *flags, "--teacher", teacher, "--overwrite-output-dir")
                self.assertNotEqual(read_losses(self.path("plain")), read_losses(self.path("half")))

    def test_the_student_learns_what_only_the_teacher_knows(self):
        """The labels that the student sees say nothing; its teacher has seen the right ones."""
        student, teacher = self.pair(steps=120)
        with open(self.path("noise.csv"), "w") as f:
            f.write("text,label\n")
            for _ in range(400):
                f.write(f"{sentence(self.rng, 20)},{self.rng.choice(('no', 'yes'))}\n")
        flags = ["--teacher", teacher, "--distill-alpha", 1, "--validation", self.data, "--lr-scheduler-type", "constant"]
        taught = self.train("taught", student, self.path("noise.csv"), *flags, steps=250)
        measured = run("eval", "--model", teacher, "--data", self.data, "--json", env=dict(XDG_CACHE_HOME=self.path("cache"))).json()
        self.assertGreater(measured["accuracy"], 0.95)
        self.assertGreater(taught["eval_accuracy"], 0.9)
        self.assertLess(os.path.getsize(self.path("taught", "model.safetensors")),
                        os.path.getsize(os.path.join(teacher, "model.safetensors")), "only the student is written")

    def test_a_fresh_student_takes_the_order_of_its_teachers_labels(self):
        student, teacher = self.pair()
        with open(os.path.join(teacher, "config.json")) as f:
            config = json.load(f)
        config["id2label"] = {"0": "yes", "1": "no"}
        config["label2id"] = {"yes": 0, "no": 1}
        with open(os.path.join(teacher, "config.json"), "w") as f:
            json.dump(config, f)
        self.train("out", student, self.data, "--teacher", teacher, steps=2)
        with open(self.path("out", "config.json")) as f:
            self.assertEqual(json.load(f)["id2label"], {"0": "yes", "1": "no"})


class BadTeachers(Distillation):
    def refused(self, student, *flags, code, words, data=None):
        error = self.train("refused", student, data or self.data, *flags, expect=code).err
        for word in words:
            self.assertIn(word, error)
        self.assertFalse(os.path.exists(self.path("refused", "model.safetensors")))

    def test_flags(self):
        student, teacher = self.pair()
        self.refused(student, "--teacher", self.path("nowhere"), code=3, words=["nowhere", "--teacher"])
        self.refused(student, "--teacher", teacher, "--distill-alpha", 1.5, code=2, words=["--distill-alpha", "1.5"])
        self.refused(student, "--teacher", teacher, "--distill-temperature", 0, code=2, words=["--distill-temperature"])
        self.refused(student, "--distill-alpha", 0.3, code=2, words=["--teacher"])

    def test_other_tasks(self):
        student, teacher = self.pair()
        numbers, tags = self.path("numbers.csv"), self.path("tags.conll")
        with open(numbers, "w") as f:
            f.write("text,label\n" + "".join(f"{sentence(self.rng, 8)},{i}\n" for i in range(20)))
        with open(tags, "w") as f:
            f.write("time O\nworld B-LOC\n\n" * 20)
        for task, data in (("regress", numbers), ("tag", tags), ("multi-label", self.data)):
            with self.subTest(task):
                self.refused(student, "--task", task, "--teacher", teacher, code=2, words=["--teacher", "clm, mlm, and classify"], data=data)

    def test_another_vocabulary(self):
        student, _ = self.pair()
        other = write_csv(self.path("other.csv"), 200, self.rng)
        with open(other, "a") as f:
            f.writelines(f"zebra{i} quagga{i},no\n" for i in range(40))
        large = self.init("other-large", train=other, vocab=200, hidden=64)
        self.train("other-teacher", large, other, steps=1)
        self.refused(student, "--teacher", self.path("other-teacher"), code=3, words=["tokenizer", "token"])

    def test_other_labels_and_no_head(self):
        student, teacher = self.pair()
        self.refused(student, "--teacher", self.path("bert-large"), code=3, words=["bert-large", "class"])
        three = write_csv(self.path("three.csv"), 200, self.rng, labels=("no", "yes", "perhaps"))
        self.refused(student, "--teacher", teacher, code=3, words=["perhaps"], data=three)
        with open(os.path.join(teacher, "config.json")) as f:
            config = json.load(f)
        swapped = shutil.copytree(teacher, self.path("swapped"))
        config["id2label"], config["label2id"] = {"0": "yes", "1": "no"}, {"yes": 0, "no": 1}
        with open(os.path.join(swapped, "config.json"), "w") as f:
            json.dump(config, f)
        self.train("trained-student", student, self.data, steps=1)
        self.refused(self.path("trained-student"), "--teacher", swapped, code=3, words=["yes, no", "no, yes"])

    def test_too_few_positions(self):
        student, _ = self.pair()
        short = self.init("short", train=self.data, vocab=200, hidden=64, positions=8)
        self.train("short-teacher", short, self.data, "--max-length", 8, steps=1)
        self.refused(student, "--teacher", self.path("short-teacher"), code=2, words=["8 positions", "--max-length"])
        self.train("shorter", student, self.data, "--teacher", self.path("short-teacher"), "--max-length", 8, steps=1)


if __name__ == "__main__":
    unittest.main()
