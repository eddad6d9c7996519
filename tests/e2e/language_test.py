"""Language models from outside: the promises for causal and masked language modelling, generation, and what is wrong with a
text, a prompt or a tokenizer's files."""
import json
import os
import re
import shutil
import subprocess
import unittest

from harness import DEVICE, MIB, ON_GPU, SNUG, WORDS, SnugTest, read_losses, run, sentence


class Language(SnugTest):
    def write_text(self, name="text.txt", lines=600, longest=14):
        with open(self.path(name), "w") as f:
            f.writelines(sentence(self.rng, longest) + "\n" for _ in range(lines))
        return self.path(name)

    def write_documents(self, name="documents.jsonl", rows=150):
        with open(self.path(name), "w") as f:
            for _ in range(rows):
                f.write(json.dumps(dict(text=sentence(self.rng, 40))) + "\n")
        return self.path(name)

    def fresh(self, kind="gpt2", name="model", **more):
        flags = {"vocab": 400 if kind != "bert" else 200, **more}
        return self.init(name, train=self.write_text(f"vocabulary-{name}.txt"), model_type=kind, **flags)

    def train(self, name, model, data, *flags, steps=12, batch=8):
        run("train", "--model", model, "--train", data, "--batch-size", batch, "--max-steps", steps, "--learning-rate", 1e-3,
            "--output-dir", self.path(name), *self.cache(), *flags)
        with open(self.path(name, "run.json")) as f:
            return json.load(f)


class Promises(Language):
    def check_memory(self, model, data, *flags):
        plan = run("plan", "--model", model, "--train", data, "--batch-size", 8, *flags, *self.cache(), "--json").json()
        least, most = plan["minimum_budget_bytes"], plan["peak_bytes"]
        self.assertEqual(sum(item["bytes"] for item in plan["items"]), most)
        for share in 0, self.rng.random(), 1:
            budget = int(least + share * max(0, most - least))
            name = f"memory-{self.rng.random()}"
            report = self.train(name, model, data, *flags, "--memory", budget, steps=3)
            self.assertEqual(report["measured_arena_bytes"], report["predicted_arena_bytes"])
            self.assertLessEqual(report["measured_peak_bytes"], budget)
            self.assertLessEqual(abs(report["measured_peak_bytes"] / report["predicted_peak_bytes"] - 1), 0.05)
        run("train", "--model", model, "--train", data, "--batch-size", 8, *flags, "--memory", least - MIB, "--output-dir", self.path("no"),
            *self.cache(), expect=4)

    def test_the_plan_is_the_run(self):
        text, documents = self.write_text(), self.write_documents()
        self.check_memory(self.fresh("gpt2", "a", hidden=96, layers=4), text, "--block-size", 48)
        self.check_memory(self.fresh("gpt2", "b", vocab=2000), documents, "--no-concat")
        self.check_memory(self.fresh("gpt2", "c"), documents, "--attention-across-documents")
        self.check_memory(self.fresh("roberta", "d"), text, "--task", "mlm")
        self.check_memory(self.fresh("bert", "e"), text, "--whole-word-mask", "--mlm-probability", 0.3)

    def test_memory_never_changes_the_result(self):
        for kind, data, flags in ("gpt2", self.write_text(), ["--block-size", 40]), ("gpt2", self.write_documents(), []), \
                ("roberta", self.write_text("r.txt"), ["--task", "mlm"]):
            with self.subTest(kind=kind, data=data):
                model = self.fresh(kind, f"{kind}-{os.path.basename(data)}", layers=3)
                losses = []
                for i, more in enumerate((["--recompute", "none"], ["--recompute", "none", "--micro-batch-tokens", 64], ["--recompute", "all"])):
                    name = f"same-{kind}-{os.path.basename(data)}-{i}"
                    self.train(name, model, data, *flags, *more, "--dropout", 0.1, steps=20)
                    losses.append(read_losses(self.path(name)))
                self.assertEqual(losses[0], losses[2], "recomputing gives the same bits")
                self.assertLessEqual(max(abs(losses[0][s] - losses[1][s]) / losses[0][s] for s in losses[0]), 2e-5)
                self.assertNotEqual(losses[0], losses[1], "packed differently, so rounded differently: else nothing was tested")

    def test_long_documents_of_their_own_lose_nothing(self):
        model, data = self.fresh(), self.write_documents(rows=30)
        tokens = run("tokenize", "--model", model, "--input", data, "--no-special-tokens").out
        expected = sum(len(json.loads(line)["ids"]) + 1 for line in tokens.splitlines())  # and the end-of-text token
        report = self.train("pieces", model, data, "--no-concat", "--block-size", 16, "--validation-split-percentage", 0,
                            "--num-train-epochs", 1, steps=0)
        self.assertEqual(report["tokens"], expected)

    def test_long_lines_of_masked_models_are_counted_or_windowed(self):
        model, data = self.fresh("bert"), self.path("long.txt")
        with open(data, "w") as f:
            f.writelines((sentence(self.rng, 8) + " ") * 40 + "\n" for _ in range(4))
        flags = ["--model", model, "--train", data, "--task", "mlm", "--max-length", 32, "--max-steps", 1, "--validation-split-percentage", 0,
                 "--batch-size", 4, *self.cache()]
        cut = run("train", *flags, "--output-dir", self.path("cut"))
        self.assertIn("4 texts have more than 32 tokens", cut.err)
        run("train", *flags, "--long-texts", "windows", "--output-dir", self.path("windows"))
        self.assertNotEqual(*(read_losses(self.path(name)) for name in ("cut", "windows")))
        run("train", "--model", self.fresh("gpt2", "g"), "--train", data, "--long-texts", "windows", "--max-steps", 1, "--output-dir", self.path("no"),
            *self.cache(), expect=2)

    def test_a_resumed_run_continues_the_same_curve(self):
        model, data = self.fresh(), self.write_text()
        flags = ["--block-size", 32, "--save-steps", 5]
        self.train("whole", model, data, *flags, steps=15)
        self.train("parts", model, data, *flags, steps=15)
        shutil.rmtree(self.path("parts", "checkpoints", "step-15"))
        os.remove(self.path("parts", "model.safetensors"))
        self.train("parts", model, data, *flags, "--resume-from-checkpoint", "latest", steps=15)
        with open(self.path("whole", "model.safetensors"), "rb") as a, open(self.path("parts", "model.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertEqual(read_losses(self.path("whole")), read_losses(self.path("parts")))

    def test_it_learns(self):
        """Counting from a random number on: but for the first word of a line, everything follows from what stands before."""
        words = "one two three four five six seven eight nine ten eleven twelve".split()
        with open(self.path("rules.txt"), "w") as f:
            for _ in range(1500):
                start = self.rng.randrange(6)
                f.write(" ".join(words[start:start + 6]) + "\n")
        model = self.init("rules", train=self.path("rules.txt"), model_type="gpt2", vocab=300, hidden=64)
        report = self.train("learned", model, self.path("rules.txt"), "--block-size", 32, "--lr-scheduler-type", "constant", steps=150, batch=16)
        self.assertLess(report["eval_perplexity"], 2.0)
        text = run("generate", "--model", self.path("learned"), "--prompt", "three four five", "--greedy", "--max-new-tokens", 1,
                   "--json").json()["texts"][0]["text"]
        self.assertEqual(text, " six")
        measured = run("eval", "--model", self.path("learned"), "--data", self.path("rules.txt"), "--max-length", 32, "--json",
                       env=dict(XDG_CACHE_HOME=self.path("cache"))).json()
        self.assertLess(measured["perplexity"], 2.0)


class Generation(Language):
    def setUp(self):
        super().setUp()
        self.model = self.fresh()

    def generate(self, *flags, expect=0):
        return run("generate", "--model", self.model, "--json", *flags, expect=expect)

    def texts(self, *flags):
        return [t["text"] for t in self.generate("--ignore-eos", *flags).json()["texts"]]

    def test_a_text_does_not_know_its_neighbours(self):
        prompts = [f for word in ("time", "year", "people", "way", "day") for f in ("--prompt", word)]
        together = self.texts(*prompts, "--num-return", 2, "--max-new-tokens", 30)
        self.assertEqual(len(together), 10)
        self.assertEqual(together, self.texts(*prompts, "--num-return", 2, "--max-new-tokens", 30, "--batch-size", 3))
        self.assertEqual(len(set(together)), 10, "texts of one prompt differ")
        self.assertNotEqual(together, self.texts(*prompts, "--num-return", 2, "--max-new-tokens", 30, "--seed", 1))

    def test_flags(self):
        greedy = self.texts("--prompt", "time", "--greedy", "--max-new-tokens", 20)
        self.assertEqual(greedy, self.texts("--prompt", "time", "--top-k", 1, "--max-new-tokens", 20))
        self.assertNotEqual(greedy, self.texts("--prompt", "time", "--greedy", "--max-new-tokens", 20, "--repetition-penalty", 5))
        stop = greedy[0][3:6]
        self.assertEqual(self.texts("--prompt", "time", "--greedy", "--max-new-tokens", 20, "--stop", stop), [greedy[0][:greedy[0].index(stop)]])

    def test_the_model_says_how_it_writes(self):
        """What generation_config.json has stands in for flags that are not given, and goes on into folders that are written."""
        greedy = self.texts("--prompt", "time", "--greedy", "--max-new-tokens", 12)
        wild = self.texts("--prompt", "time", "--top-k", 0, "--temperature", 3, "--max-new-tokens", 12)
        ids = run("tokenize", "--model", self.model, "--text", greedy[0]).json()["ids"]
        path = os.path.join(self.model, "generation_config.json")

        def say(**fields):
            with open(path, "w") as f:
                json.dump(fields, f)

        say(do_sample=False, max_new_tokens=12)
        self.assertEqual(greedy, self.texts("--prompt", "time"))
        self.assertIn("from the model's generation_config.json: --max-new-tokens 12, --temperature 0\n", self.generate("--prompt", "time").err)
        self.assertEqual(wild, self.texts("--prompt", "time", "--top-k", 0, "--temperature", 3), "flags come first")
        say(do_sample=False, max_new_tokens=12, eos_token_id=[ids[3], ids[3]], num_beams=4)
        result = self.generate("--prompt", "time")
        self.assertLessEqual(result.json()["texts"][0]["tokens"], 4)
        self.assertEqual(result.json()["texts"][0]["finish_reason"], "eos")
        self.assertIn("sets num_beams, which snug does not follow", result.err)
        run("quantize", "--model", self.model, "--output-dir", self.path("int8"))
        with open(path) as f, open(self.path("int8/generation_config.json")) as g:
            self.assertEqual(f.read(), g.read())
        say(temperature=-1)
        self.assertRegex(self.generate("--prompt", "time", expect=3).err, "generation_config.json: temperature must be zero or more, found -1")

    def test_memory(self):
        report = self.generate("--prompt", "time", "--num-return", 8, "--max-new-tokens", 40).json()
        peak = report["predicted_peak_bytes"]
        self.assertLessEqual(abs(report["measured_peak_bytes"] / peak - 1), 0.05)
        less = self.generate("--prompt", "time", "--num-return", 8, "--max-new-tokens", 40, "--memory", peak - MIB // 8, expect=None)
        if less.code == 0:
            self.assertLessEqual(less.json()["measured_peak_bytes"], peak)
            self.assertEqual([t["text"] for t in less.json()["texts"]], [t["text"] for t in report["texts"]])
        self.generate("--prompt", "time", "--memory", "4MiB", expect=4)

    def test_what_is_written_is_in_the_plan(self):
        with open(self.path("prompts.txt"), "w") as f:
            f.writelines(f"time number {i}\n" for i in range(8000))
        flags = ["generate", "--model", self.model, "--input", self.path("prompts.txt"), "--ignore-eos", "--max-new-tokens", 30]
        least = int(re.search(r"--memory (\d+)", run(*flags, "--memory", "1MiB", expect=4).err)[1])
        for form in [], ["--json"]:
            result = run(*flags, "--memory", least, *form)
            self.assertGreater(len(result.out), 8000 * 30)
            if result.peak_bytes:
                self.assertLessEqual(result.peak_bytes, least)

    @unittest.skipIf(ON_GPU, "prompts are not where the budget is")
    def test_giant_prompts_are_read_within_the_budget_or_refused(self):
        """With spaces they take little more than their text; without, they are one word, which takes many times as much."""
        spaced = " ".join(self.rng.choice(WORDS) for _ in range(1_000_000))
        for text, little, enough, refusal in ((spaced, 40, 80, "line 2: has more than [0-9]+ bytes"),
                                              (spaced.replace(" ", ""), 80, 400, "prompt 2: has [0-9]+ bytes without white space")):
            with open(self.path("prompts.txt"), "w") as f:
                f.write(f"time\n{text}\n")
            for budget in little, enough:
                with self.subTest(refusal, budget=budget):
                    result = run("generate", "--model", self.model, "--input", self.path("prompts.txt"), "--sliding", "--max-new-tokens", 3, "--memory",
                                 budget * MIB, expect=0 if budget == enough else 4)
                    if budget == little:
                        self.assertRegex(result.err, refusal)
                    if result.peak_bytes:
                        self.assertLessEqual(result.peak_bytes, budget * MIB)

    def test_the_end_of_the_context(self):
        long = " ".join(["time"] * 100)
        refused = self.generate("--prompt", long, expect=2)
        self.assertIn("--sliding", refused.err)
        self.assertIn("64", refused.err)
        report = self.generate("--prompt", long, "--sliding", "--ignore-eos", "--max-new-tokens", 150).json()
        self.assertEqual(report["texts"][0]["tokens"], 150)
        short = self.generate("--prompt", "time", "--ignore-eos", "--max-new-tokens", 1000)
        self.assertEqual(short.json()["texts"][0]["finish_reason"], "length")
        self.assertIn("--sliding", short.err)

    def test_prompts_from_a_file_and_an_empty_one(self):
        with open(self.path("prompts.txt"), "w") as f:
            f.write("time\n\nyear\n")
        self.assertEqual(len(self.texts("--input", self.path("prompts.txt"), "--max-new-tokens", 3)), 3)
        self.assertEqual(len(self.texts("--prompt", "", "--max-new-tokens", 3)), 1)

    def signs(self, count):
        """A prompt of so many tokens: the vocabulary was made of letters, so that every sign is a token of its own."""
        return "".join(self.rng.choice("!?;:+*") for _ in range(count))

    def greedy(self, prompt, count, *flags):
        return self.generate("--prompt", prompt, "--greedy", "--ignore-eos", "--precision", "fp32", "--max-new-tokens", count,
                             *flags).json()["texts"][0]

    def test_a_prompt_that_takes_all_positions(self):
        """What the model writes behind 63 tokens, read with them, gives the same second token as if it had been written."""
        while True:
            text = self.signs(63)
            whole = text + self.greedy(text, 1)["text"]
            # What was written may be half a character, which is not the same when it is read.
            if len(run("tokenize", "--model", self.model, "--text", whole).json()["ids"]) == 64:
                break
        both = self.greedy(text, 2)
        for flags in [], ["--sliding"]:
            second = self.greedy(whole, 1, *flags)
            self.assertEqual(whole + second["text"], text + both["text"])
            self.assertAlmostEqual(second["log_probability"] + self.greedy(text, 1)["log_probability"], both["log_probability"], places=4)
        report = self.generate("--prompt", whole, "--ignore-eos", "--max-new-tokens", 5, "--repetition-penalty", 2)
        self.assertEqual((report.json()["tokens"], report.json()["texts"][0]["finish_reason"]), (1, "length"))
        self.assertIn("--sliding", report.err)
        self.assertEqual(self.generate("--prompt", whole, "--ignore-eos", "--max-new-tokens", 5, "--sliding").json()["tokens"], 5)
        self.assertIn("64", self.generate("--prompt", whole + " time", expect=2).err)

    def test_a_long_prompt_slides_to_its_last_half(self):
        long = self.signs(300)
        slid, end, more = self.greedy(long, 9, "--sliding"), self.greedy(long[-32:], 9), self.greedy(long[-33:], 9)
        self.assertEqual(slid["text"], end["text"])
        self.assertAlmostEqual(slid["log_probability"], end["log_probability"], places=4)
        self.assertNotAlmostEqual(more["log_probability"], end["log_probability"], places=3)

    def test_bytes_that_are_not_utf8(self):
        texts = self.generate("--prompt", os.fsdecode(b"a\xff"), "--max-new-tokens", 3).json()["texts"]
        self.assertEqual(texts[0]["prompt"], "a\ufffd")
        # This model writes bytes at random, so that a U+FFFD comes soon; the stop text is its second byte.
        texts = self.generate("--prompt", "a", "--ignore-eos", "--sliding", "--max-new-tokens", 500, "--top-k", 0,
                              "--stop", os.fsdecode(b"\xbf")).json()["texts"]
        self.assertEqual(texts[0]["finish_reason"], "stop")
        self.assertTrue(texts[0]["text"].endswith("\ufffd"))

    def test_a_run_that_fails_shows_nothing(self):
        for flags, code in ((["--top-p", 0], 2), (["--memory", "1MiB"], 4), (["--model", self.path("nosuch")], 3),
                            (["--prompt", " ".join(["time"] * 100), "--num-return", 1], 2)):
            for form in [], ["--json"]:
                with self.subTest(flags=flags, form=form):
                    self.assertEqual(run("generate", "--model", self.model, "--prompt", "time", *flags, *form, expect=code).out, "")
        shown = run("generate", "--model", self.model, "--prompt", "time", "--ignore-eos", "--max-new-tokens", 5).out
        self.assertEqual(shown, "time" + self.texts("--prompt", "time", "--max-new-tokens", 5)[0] + "\n")

    def test_it_stops_when_nobody_reads(self):
        flags = ["generate", "--model", self.model, "--prompt", "time", "--ignore-eos", "--sliding", "--max-new-tokens", 10**6,
                 *(["--device", DEVICE] if DEVICE else [])]
        process = subprocess.Popen([SNUG, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.read(4), b"time")
        process.stdout.close()
        self.assertIn(b"standard output", process.communicate(timeout=10)[1])
        self.assertEqual(process.returncode, 5)

    @unittest.skipIf(ON_GPU, "texts are not where the budget is")
    def test_prompts_have_room_in_the_memory(self):
        least = int(re.search(r"--memory (\d+)", self.generate("--prompt", "time", "--memory", "1MiB", expect=4).err)[1])
        budget = least + 16 * MIB
        with open(self.path("line.txt"), "w") as f:
            f.write("time year " * 2_000_000)
        with open(self.path("lines.txt"), "w") as f:
            f.writelines(f"time {i}\n" for i in range(400_000))
        for flags, words in ((["--input", self.path("line.txt")], "line 1"), (["--input", self.path("line.txt"), "--sliding"], "line 1"),
                             (["--input", self.path("lines.txt")], "prompts"), (["--prompt", "time", "--num-return", 10**6], "prompts")):
            with self.subTest(flags=flags):
                refused = self.generate(*flags, "--memory", budget, expect=4)
                self.assertIn(words, refused.err)
                if refused.peak_bytes:
                    self.assertLessEqual(refused.peak_bytes, budget)

    def test_usage(self):
        for flags in (["--prompt", "a", "--input", "b.txt"], [], ["--prompt", "a", "--temperature", -1], ["--prompt", "a", "--top-p", 0],
                      ["--prompt", "a", "--max-new-tokens", 0], ["--prompt", "a", "--max-new-tokens", 2**63 - 1],
                      ["--prompt", "a", "--max-new-tokens", "9999999999999999999"], ["--prompt", "a", "--num-return", 2**63 - 1],
                      ["--prompt", "a", "--stop", ""]):
            self.assertIn("error", self.generate(*flags, expect=2).err)
        bert = self.fresh("bert", "bert")
        self.assertIn("bert", run("generate", "--model", bert, "--prompt", "a", expect=2).err)


class BadInput(Language):
    def refuse(self, *flags, expect=3, words=()):
        result = run("train", "--output-dir", self.path("out"), *self.cache(), *flags, expect=expect)
        self.assertIn("error:", result.err)
        for word in words:
            self.assertIn(word, result.err)
        self.assertFalse(os.path.exists(self.path("out", "model.safetensors")))

    def test_texts(self):
        model = self.fresh()
        cases = {"empty.txt": (b"", "no rows"), "blank.txt": (b" \n\n ", "empty"), "binary.txt": (b"ab\0cd ef\n" * 20, "zero bytes"),
                 "latin1.txt": (b"caf\xe9 au lait\n", "not UTF-8"), "utf16.txt": ("time year".encode("utf-16"), "UTF-16")}
        for name, (contents, words) in cases.items():
            with self.subTest(name=name):
                with open(self.path(name), "wb") as f:
                    f.write(contents)
                self.refuse("--model", model, "--train", self.path(name), words=[name, words])
        text = self.write_text()
        self.refuse("--model", model, "--train", text, "--block-size", 65, expect=2, words=["--block-size", "64"])
        self.refuse("--model", model, "--train", text, "--task", "mlm", expect=2, words=["gpt2"])
        self.refuse("--model", model, "--train", text, "--task", "poetry", expect=2, words=["poetry", "clm"])
        self.refuse("--model", self.fresh("bert", "bert"), "--train", text, "--task", "clm", expect=2, words=["clm"])

    def test_tokenizer_files(self):
        text = self.write_text()

        def broken(name, change):
            model = self.fresh("gpt2", name)
            os.remove(os.path.join(model, "tokenizer.json"))
            with open(os.path.join(model, "vocab.json")) as f:
                vocab = json.load(f)
            with open(os.path.join(model, "merges.txt")) as f:
                merges = f.read()
            vocab, merges = change(vocab, merges)
            with open(os.path.join(model, "vocab.json"), "w") as f:
                json.dump(vocab, f)
            with open(os.path.join(model, "merges.txt"), "w") as f:
                f.write(merges)
            return model

        run("tokenize", "--model", broken("good", lambda v, m: (v, m)), "--input", text)
        first = lambda vocab: next(iter(vocab))
        cases = {
            "unknown": (lambda v, m: (v, m + "qq zz\n"), "qq"),
            "three": (lambda v, m: (v, m + "a b c\n"), "merges.txt"),
            "gap": (lambda v, m: ({k: i + (i > 50) for k, i in v.items()}, m), "id"),
            "twice": (lambda v, m: ({k: 3 if i == 4 else i for k, i in v.items()}, m), "3"),
            "text-id": (lambda v, m: ({**v, first(v): "0"}, m), "vocab.json"),
            "no-byte": (lambda v, m: ({k: i for i, k in enumerate(k for k in v if k != "a")}, ""), "vocab.json"),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name=name):
                self.refuse("--model", broken(name, change), "--train", text, words=[words])


if __name__ == "__main__":
    unittest.main()
