"""Three steps of Adafactor (transformers) and SGD (PyTorch) on a small matrix and a vector, as src/optim/*_test.cc expects
them. Prints C++ arrays.

    python tests/golden/make_optimizers.py
"""
import math

import torch
from transformers.optimization import Adafactor

LEARNING_RATE, DECAY, STEPS = 0.05, 0.1, 3


def run(shape, make):
    count = math.prod(shape)
    weight = torch.tensor([math.sin(i + 1) for i in range(count)]).reshape(shape).requires_grad_()
    optimizer = make([weight])
    for step in range(1, STEPS + 1):
        weight.grad = torch.tensor([math.cos((i + 1) * step) / (i + 1) for i in range(count)]).reshape(shape)
        optimizer.step()
    return weight.detach().flatten().tolist()


def show(name, values):
    print(f"{name} = {{{', '.join(f'{v:.9g}f' for v in values)}}};")


def adafactor(parameters):
    return Adafactor(parameters, lr=LEARNING_RATE, weight_decay=DECAY, scale_parameter=False, relative_step=False)


def sgd(momentum):
    return lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, weight_decay=DECAY, momentum=momentum)


show("adafactor matrix [3, 4]", run((3, 4), adafactor))
show("adafactor vector [5]", run((5,), adafactor))
show("sgd, momentum 0.9 [5]", run((5,), sgd(0.9)))
show("sgd, no momentum [5]", run((5,), sgd(0.0)))
