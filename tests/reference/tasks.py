"""Every task on real data: the same model trained by snug and by PyTorch + transformers with the same recipe, their scores side by
side. Needs torch, transformers and the shared data, so it is not part of make test.

    python3 tests/reference/tasks.py SNUG DATA MODEL [--tasks mrpc,cola,...] [--seeds 42,43,44] [--rows N] [--device cpu|cuda] [--out FILE]"""
import argparse
import json
import math
import os
import random
import re
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import (AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer,
                          get_linear_schedule_with_warmup)

BATCH, RATE, STRIDE = 16, 1e-4, 128


def answer_words(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def answer_f1(gold, predicted):
    """SQuAD's."""
    gold, predicted = answer_words(gold), answer_words(predicted)
    same = sum((Counter(gold) & Counter(predicted)).values())
    return 2 * same / (len(gold) + len(predicted)) if same else 0.0


def lines(path):
    with open(path, encoding="utf-8-sig", newline="\n") as f:
        return [line.rstrip("\n") for line in f]


def columns(path, text, pair, label, header=True, convert=str):
    rows = [line.split("\t") for line in lines(path)[header:]]
    return [(row[text], row[pair] if pair is not None else None, convert(row[label])) for row in rows]


def sentences(path):
    result, words = [], []
    for line in [*lines(path), ""]:
        if line.strip():
            words.append(line.split())
        elif words:
            result.append(words)
            words = []
    return result


def questions(path):
    with open(path) as f:
        return [(qa["question"], paragraph["context"], qa["answers"], qa["id"])
                for article in json.load(f)["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


class Task:
    """How snug is told, what it reports, and the same for PyTorch."""

    def __init__(self, name, task, metric, epochs=3, length=128, flags=()):
        self.name, self.task, self.metric, self.epochs, self.length, self.flags = name, task, metric, epochs, length, list(flags)


TASKS = {task.name: task for task in [
    Task("mrpc", "classify", "f1", flags=["--text-column", "#1 String", "--text-pair-column", "#2 String", "--label-column", "Quality"]),
    Task("cola", "classify", "matthews_correlation", flags=["--no-header", "--text-column", "#4", "--label-column", "#2"]),
    Task("clinc150", "classify", "accuracy", length=64), Task("stsb", "regress", "pearson"),
    Task("wikigold", "tag", "f1"), Task("squad-v1.1", "qa", "f1", epochs=2, length=384)]}


def prepare(task, data, folder, rows):
    """Files for snug and rows for PyTorch: (train file, dev file, train rows, dev rows)."""
    source = os.path.join(data, task.name)
    extension = {"tag": "conll", "qa": "json"}.get(task.task, "tsv")
    train, dev = (os.path.join(folder, f"{task.name}-{part}.{extension}") for part in ("train", "dev"))
    if task.task == "tag":
        everything = sentences(os.path.join(source, "wikigold.conll.txt"))
        random.Random(1).shuffle(everything)
        held_out = len(everything) // 5
        parts = everything[held_out:][:rows], everything[:held_out]
        for path, part in zip((train, dev), parts):
            with open(path, "w") as f:
                f.writelines("".join(f"{word} {tag}\n" for word, tag in sentence) + "\n" for sentence in part)
        return train, dev, *parts
    if task.task == "qa":
        for path, name in (train, "train"), (dev, "dev"):
            with open(os.path.join(source, f"{name}.json")) as f:
                contents = json.load(f)
            if rows:
                contents["data"] = contents["data"][:2]
                for article in contents["data"]:
                    article["paragraphs"] = article["paragraphs"][:max(1, rows // 20)]
            with open(path, "w") as f:
                json.dump(contents, f)
        return train, dev, questions(train), questions(dev)
    header = task.name != "cola"
    for path, name in (train, "train"), (dev, "dev"):
        with open(os.path.join(source, f"{name}.tsv"), "rb") as f, open(path, "wb") as g:
            g.writelines(f.readlines()[:rows + header if rows else None])
    layout = {"mrpc": (3, 4, 0, True), "cola": (3, None, 1, False), "clinc150": (1, None, 0, True), "stsb": (7, 8, 9, True)}[task.name]
    convert = float if task.task == "regress" else str
    return train, dev, columns(train, *layout, convert), columns(dev, *layout, convert)


def by_snug(snug, model, task, files, seed, device, folder):
    output = os.path.join(folder, f"out-{task.name}-{seed}")
    done = subprocess.run([snug, "train", "--model", model, "--task", task.task, "--train", files[0], "--validation", files[1], "--device", device,
                           "--precision", "fp32", "--max-length", str(task.length), "--batch-size", str(BATCH), "--learning-rate", str(RATE),
                           "--warmup-ratio", "0.1", "--num-train-epochs", str(task.epochs), "--seed", str(seed), "--save-strategy", "no",
                           "--cache-dir", os.path.join(folder, "cache"), "--output-dir", output, "--overwrite-output-dir", "--json", *task.flags,
                           *(["--stride", str(STRIDE)] if task.task == "qa" else [])], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"snug on {task.name} ended with {done.returncode}: {done.stderr[-800:]}")
    report = json.loads(done.stdout)
    return report[f"eval_{task.metric}"], report["seconds"], report["measured_peak_bytes"]


def text_features(task, tokenizer, rows, labels):
    features = []
    for text, pair, label in rows:
        encoded = tokenizer(text, pair, truncation=True, max_length=task.length)
        target = label if task.task == "regress" else labels.index(label)
        features.append(dict(encoded, labels=target))
    return features


def tag_features(task, tokenizer, rows, labels):
    features = []
    for sentence in rows:
        encoded = tokenizer([word for word, _ in sentence], is_split_into_words=True, truncation=True, max_length=task.length)
        owners = encoded.word_ids()
        encoded["labels"] = [-100 if owner is None or (i and owners[i - 1] == owner) else labels.index(sentence[owner][1])
                             for i, owner in enumerate(owners)]
        features.append(dict(encoded))
    return features


def answer_features(task, tokenizer, rows):
    """A feature for each window, as the reference script makes them."""
    features = []
    for number, (question, context, answers, _) in enumerate(rows):
        encoded = tokenizer(question, context, truncation="only_second", max_length=task.length, stride=STRIDE,
                            return_overflowing_tokens=True, return_offsets_mapping=True)
        begin, end = answers[0]["answer_start"], answers[0]["answer_start"] + len(answers[0]["text"])
        for i, offsets in enumerate(encoded["offset_mapping"]):
            inside = [t for t, owner in enumerate(encoded.sequence_ids(i)) if owner == 1]
            first, last = inside[0], inside[-1]
            start = stop = 0
            if offsets[first][0] <= begin and offsets[last][1] >= end:
                start = max(t for t in inside if offsets[t][0] <= begin)
                stop = min(t for t in inside if offsets[t][1] >= end)
            features.append({"input_ids": encoded["input_ids"][i], "token_type_ids": encoded["token_type_ids"][i],
                             "attention_mask": encoded["attention_mask"][i], "start_positions": start, "end_positions": stop,
                             "row": number, "offsets": offsets, "inside": (first, last)})
    return features


def collate(features, device):
    longest = max(len(feature["input_ids"]) for feature in features)
    batch = {}
    for name, filler in ("input_ids", 0), ("token_type_ids", 0), ("attention_mask", 0):
        batch[name] = torch.tensor([feature[name] + [filler] * (longest - len(feature[name])) for feature in features], device=device)
    if "labels" in features[0]:
        padded = isinstance(features[0]["labels"], list)
        batch["labels"] = torch.tensor([feature["labels"] + [-100] * (longest - len(feature["labels"])) if padded else feature["labels"]
                                        for feature in features], device=device)
    for name in "start_positions", "end_positions":
        if name in features[0]:
            batch[name] = torch.tensor([feature[name] for feature in features], device=device)
    return batch


def entities(tags):
    """As conlleval reads IOB1 and IOB2."""
    found, start, kind = set(), None, None
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, this = tag.partition("-")
        if kind is not None and (prefix == "O" or prefix == "B" or this != kind):
            found.add((start, i - 1, kind))
            kind = None
        if prefix != "O" and kind is None:
            start, kind = i, this
    return found


def score_texts(task, model, features, device, labels):
    expected, predicted = [], []
    for i in range(0, len(features), 64):
        batch = collate(features[i:i + 64], device)
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits.float().cpu()
        predicted += logits[:, 0].tolist() if task.task == "regress" else logits.argmax(-1).tolist()
        expected += batch["labels"].tolist()
    if task.metric == "accuracy":
        return sum(a == b for a, b in zip(expected, predicted)) / len(expected)
    if task.metric == "pearson":
        return torch.corrcoef(torch.tensor([expected, predicted], dtype=torch.float64))[0, 1].item()
    table = [[sum(a == x and b == y for a, b in zip(expected, predicted)) for y in (0, 1)] for x in (0, 1)]
    (tn, fp), (fn, tp) = table
    if task.metric == "f1":
        return 2 * tp / (2 * tp + fp + fn)
    return (tp * tn - fp * fn) / math.sqrt(max(1, (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def score_tags(model, features, device, labels):
    right = proposed = there = 0
    for i in range(0, len(features), 32):
        batch = collate(features[i:i + 32], device)
        best = model(**{name: value for name, value in batch.items() if name != "labels"}).logits.argmax(-1).tolist()
        for scores, gold in zip(best, batch["labels"].tolist()):
            kept = [(labels[a], labels[b]) for a, b in zip(scores, gold) if b >= 0]
            ours, theirs = entities([a for a, _ in kept]), entities([b for _, b in kept])
            right, proposed, there = right + len(ours & theirs), proposed + len(ours), there + len(theirs)
    return 2 * right / max(1, proposed + there)


def score_answers(model, features, rows, device):
    best = {}
    for i in range(0, len(features), 32):
        output = model(**{name: value for name, value in collate(features[i:i + 32], device).items() if not name.endswith("positions")})
        for feature, starts, ends in zip(features[i:i + 32], output.start_logits.tolist(), output.end_logits.tolist()):
            first, last = feature["inside"]
            top = [sorted(range(len(feature["input_ids"])), key=lambda t, s=scores: -s[t])[:20] for scores in (starts, ends)]
            for a in top[0]:
                for b in top[1]:
                    if first <= a <= b <= last and b - a < 30 and starts[a] + ends[b] > best.get(feature["row"], (-math.inf,))[0]:
                        best[feature["row"]] = starts[a] + ends[b], feature["offsets"][a][0], feature["offsets"][b][1]
    total = 0.0
    for number, (_, context, answers, _) in enumerate(rows):
        _, begin, end = best.get(number, (0, 0, 0))
        total += max(answer_f1(answer["text"], context[begin:end]) for answer in answers)
    return 100 * total / len(rows)


def by_torch(model_folder, task, train, dev, seed, device):
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    labels = None
    if task.task == "qa":
        model = AutoModelForQuestionAnswering.from_pretrained(model_folder, dtype=torch.float32)
        train_features, dev_features = (answer_features(task, tokenizer, rows) for rows in (train, dev))
    elif task.task == "tag":
        labels = sorted({tag for sentence in train for _, tag in sentence})
        model = AutoModelForTokenClassification.from_pretrained(model_folder, num_labels=len(labels), dtype=torch.float32)
        train_features, dev_features = (tag_features(task, tokenizer, rows, labels) for rows in (train, dev))
    else:
        labels = [None] if task.task == "regress" else sorted({label for _, _, label in train})
        model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=len(labels), dtype=torch.float32)
        train_features, dev_features = (text_features(task, tokenizer, rows, labels) for rows in (train, dev))
    model.to(device).train()
    steps = math.ceil(len(train_features) / BATCH) * task.epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(0.1 * steps), steps)
    start = time.time()
    order = random.Random(seed)
    for _ in range(task.epochs):
        order.shuffle(train_features)
        for i in range(0, len(train_features), BATCH):
            model(**collate(train_features[i:i + BATCH], device)).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.time() - start
    model.eval()
    with torch.no_grad():
        if task.task == "qa":
            return score_answers(model, dev_features, dev, device), seconds
        if task.task == "tag":
            return score_tags(model, dev_features, device, labels), seconds
        return score_texts(task, model, dev_features, device, labels), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="42,43,44")
    parser.add_argument("--rows", type=int, default=None, help="of each training file, for a quick look")
    parser.add_argument("--device", default="cpu", help="snug's")
    parser.add_argument("--only", choices=["snug", "torch"], help="leave the other out")
    parser.add_argument("--out", help="JSON lines go here")
    args = parser.parse_args()
    unknown = set(args.tasks.split(",")) - set(TASKS)
    if unknown:
        parser.error(f"--tasks: there is no {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    torch_device = "cuda" if torch.cuda.is_available() else "cpu"
    seeds = [int(seed) for seed in args.seeds.split(",")]
    failures = []
    print("| data | score | snug | PyTorch | difference, points | snug s | PyTorch s |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.tasks.split(","):
            task = TASKS[name]
            train, dev, train_rows, dev_rows = prepare(task, args.data, folder, args.rows)
            scale = 1 if task.task == "qa" else 100
            ours = [by_snug(args.snug, args.model, task, (train, dev), seed, args.device, folder) for seed in seeds] if args.only != "torch" else []
            theirs = [by_torch(args.model, task, list(train_rows), dev_rows, seed, torch_device) for seed in seeds] if args.only != "snug" else []
            mean = [scale * sum(run[0] for run in runs) / len(runs) if runs else math.nan for runs in (ours, theirs)]
            shown = [", ".join(f"{scale * run[0]:.2f}" for run in runs) for runs in (ours, theirs)]
            print(f"| {name} | {task.metric} | {shown[0]} | {shown[1]} | {mean[0] - mean[1]:+.2f} | {sum(run[1] for run in ours):.1f} "
                  f"| {sum(run[1] for run in theirs):.1f} |", flush=True)
            if args.out:
                with open(args.out, "a") as f:
                    f.write(json.dumps({"data": name, "metric": task.metric, "seeds": seeds, "snug": ours, "torch": theirs}) + "\n")
            if mean[0] < mean[1] - 1.5:
                failures.append(name)
    sys.exit(f"more than 1.5 points below PyTorch: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
