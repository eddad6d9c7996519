"""Makes heads/*.json: the models of make_golden.py with the heads of other tasks, and what PyTorch and transformers say
about them in fp64: logits, the losses of ten AdamW steps without dropout, and of each parameter's first gradient the norm
and a weighted sum. Weights are those of the folder that a file names; those of a head that are not there stand in it.

    python3 tests/golden/make_heads.py [name ...]      (needs torch 2.13 and transformers 5; snug's tests do not)
"""
import json
import os
import random
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from make_golden import HERE, LENGTHS, STEPS, make_row, train
from safetensors import safe_open
from transformers import (BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification,
                          DistilBertForQuestionAnswering, DistilBertForTokenClassification,
                          GPT2ForQuestionAnswering, GPT2ForSequenceClassification, GPT2ForTokenClassification,
                          RobertaForQuestionAnswering, RobertaForSequenceClassification, RobertaForTokenClassification)
from transformers.trainer_pt_utils import LabelSmoother


@dataclass
class Case:
    cls: type
    base: str
    kind: str  # label, labels, numbers, tags or span
    outputs: int
    smoothing: float = 0.0
    class_weights: tuple = ()


PROBLEMS = dict(label="single_label_classification", labels="multi_label_classification", numbers="regression")
CASES = {
    "bert-tag": Case(BertForTokenClassification, "bert-tiny", "tags", 5),
    "roberta-tag": Case(RobertaForTokenClassification, "roberta-tiny", "tags", 4, smoothing=0.1),
    "distilbert-tag": Case(DistilBertForTokenClassification, "distilbert-tiny", "tags", 5),
    "gpt2-tag": Case(GPT2ForTokenClassification, "gpt2-tiny", "tags", 3),
    "bert-qa": Case(BertForQuestionAnswering, "bert-tiny", "span", 2),
    "roberta-qa": Case(RobertaForQuestionAnswering, "roberta-tiny", "span", 2),
    "distilbert-qa": Case(DistilBertForQuestionAnswering, "distilbert-tiny", "span", 2),
    "gpt2-qa": Case(GPT2ForQuestionAnswering, "gpt2-tiny", "span", 2),
    "bert-labels": Case(BertForSequenceClassification, "bert-tiny", "labels", 5),
    "roberta-labels": Case(RobertaForSequenceClassification, "roberta-tiny", "labels", 33),  # two words
    "bert-number": Case(BertForSequenceClassification, "bert-tiny", "numbers", 1),
    "roberta-numbers": Case(RobertaForSequenceClassification, "roberta-tiny", "numbers", 3),
    "gpt2-label": Case(GPT2ForSequenceClassification, "gpt2-tiny", "label", 3),
    "bert-smoothed": Case(BertForSequenceClassification, "bert-tiny", "label", 3, smoothing=0.15),
    "bert-tag-weighted": Case(BertForTokenClassification, "bert-tiny", "tags", 5, class_weights=(0.25, 2.0, 1.0, 0.0, 1.5)),
    "roberta-weighted": Case(RobertaForSequenceClassification, "roberta-tiny", "label", 3, class_weights=(0.5, 2.0, 1.25)),
}


def make_model(case):
    """The model, and those of its weights that the base does not have: numbers of few digits."""
    folder = os.path.join(HERE, case.base)
    problem = dict(problem_type=PROBLEMS[case.kind]) if case.kind in PROBLEMS else {}
    model = case.cls.from_pretrained(folder, num_labels=case.outputs, ignore_mismatched_sizes=True,
                                     attn_implementation="eager", **problem).eval()
    own = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as base, torch.no_grad():
        stored = {name: list(base.get_slice(name).get_shape()) for name in base.keys()}
        for name, p in model.named_parameters():
            if stored.get(name) != list(p.shape):
                own[name] = [round(random.gauss(0, 0.3), 3) for _ in range(p.numel())]
                p.copy_(torch.tensor(own[name]).reshape(p.shape))
    return model.double(), own


def make_case_row(n, case, types):
    row = make_row(n, "masked" if case.kind == "tags" else "label", types)
    if case.kind == "tags":
        row["target_ids"] = [random.randrange(case.outputs) for _ in row["target_rows"]]
        if case.class_weights:
            row["class_weights"] = case.class_weights
        return row
    label = row.pop("label")
    if case.kind == "label":
        row["label"] = label
        if case.class_weights:
            row["weight"] = case.class_weights[label]
    elif case.kind == "labels":
        row["labels"] = [random.randrange(2) for _ in range(case.outputs)]
    elif case.kind == "numbers":
        row["numbers"] = [round(random.gauss(1, 2), 2) for _ in range(case.outputs)]
    else:
        first = random.randrange(n)
        row["span"] = [first, random.randrange(first, n)]
    return row


def inputs_of(row, case):
    inputs = dict(input_ids=torch.tensor([row["ids"]]))
    if case.base not in ("gpt2-tiny", "distilbert-tiny"):
        inputs["token_type_ids"] = torch.tensor([row["type_ids"]])
    return inputs


def logits_of(model, row, case):
    out = model(**inputs_of(row, case))
    if case.kind == "span":
        return torch.stack([out.start_logits[0], out.end_logits[0]], dim=-1)
    return out.logits[0][row["target_rows"]] if case.kind == "tags" else out.logits


def loss_of(logits, rows, case):
    """logits: one tensor a row."""
    joined = torch.cat(logits)
    if case.kind == "span":
        losses = [F.cross_entropy(x.T, torch.tensor(r["span"])) for x, r in zip(logits, rows)]  # the mean of both ends
        return sum(losses) / len(rows)
    if case.kind == "labels":
        return F.binary_cross_entropy_with_logits(joined, torch.tensor([r["labels"] for r in rows], dtype=torch.double))
    if case.kind == "numbers":
        # Labels are fp32, as they come from files.
        return F.mse_loss(joined, torch.tensor([r["numbers"] for r in rows]).double())
    targets = [t for r in rows for t in (r["target_ids"] if case.kind == "tags" else [r["label"]])]
    if case.smoothing:
        return LabelSmoother(case.smoothing)((joined,), torch.tensor(targets))
    weights = torch.tensor(case.class_weights).double() if case.class_weights else None
    return F.cross_entropy(joined, torch.tensor(targets), weight=weights)


def transformers_loss(model, row, case):
    """The same for one row from transformers itself, which knows neither smoothing nor weights."""
    if case.kind == "span":
        targets = dict(start_positions=torch.tensor(row["span"][:1]), end_positions=torch.tensor(row["span"][1:]))
    elif case.kind == "tags":
        labels = torch.full((1, len(row["ids"])), -100)
        labels[0, row["target_rows"]] = torch.tensor(row["target_ids"])
        targets = dict(labels=labels)
    elif case.kind == "label":
        targets = dict(labels=torch.tensor([row["label"]]))
    else:
        targets = dict(labels=torch.tensor([row[case.kind]]).double())
    return model(**inputs_of(row, case), **targets).loss


def make(name):
    case = CASES[name]
    random.seed(name)
    model, own = make_model(case)
    types = case.base.startswith("bert")
    batches = [[make_case_row(n, case, types) for n in LENGTHS] for _ in range(STEPS)]
    loss_of_batch = lambda rows: loss_of([logits_of(model, r, case) for r in rows], rows, case)
    if not case.smoothing and not (case.class_weights and case.kind == "tags"):
        for row in batches[0]:
            ours, theirs = loss_of_batch([row]).item(), transformers_loss(model, row, case).item()
            assert abs(ours - theirs) < 1e-9 * max(1, abs(theirs)), (name, ours, theirs)

    with torch.no_grad():
        logits = torch.cat([logits_of(model, r, case) for r in batches[0]]).flatten().tolist()
    loss_of_batch(batches[0]).backward()
    weighted_sum = lambda g: (g.flatten() * torch.cos(torch.arange(g.numel(), dtype=g.dtype))).sum().item()
    gradients = {k: [p.grad.norm().item(), weighted_sum(p.grad)] for k, p in model.named_parameters()}
    steps = train(model, batches, loss_of_batch)
    os.makedirs(os.path.join(HERE, "heads"), exist_ok=True)
    with open(os.path.join(HERE, "heads", name + ".json"), "w") as f:
        json.dump(dict(steps, base=case.base, outputs=case.outputs, smoothing=case.smoothing,
                       weighted=bool(case.class_weights), weights=own, logits=[round(x, 9) for x in logits],
                       gradients=gradients, batches=batches), f)
    print(name, steps["losses"])


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name)
