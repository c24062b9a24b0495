"""Enumerable little models, and how far generated texts are from the distribution that they should have."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from draftyard.engine.acceptance import Draft, draw_without_replacement, verify
from draftyard.engine.sampling import adjusted, distribution
from draftyard.nouns.generation import GenerationRequest

VOCABULARY, LENGTH = 4, 3
Context = tuple[int, ...]
Logits = Mapping[Context, torch.Tensor]


def table(seed: int) -> Logits:
    """Next-token logits for every context of fewer than `LENGTH` tokens."""
    generator = torch.Generator().manual_seed(seed)
    contexts = [context for length in range(LENGTH) for context in itertools.product(range(VOCABULARY), repeat=length)]
    return {context: torch.randn(VOCABULARY, generator=generator) * 1.2 for context in contexts}


TARGET, DRAFT = table(1), table(2)


@cache
def own_distribution(context: Context) -> torch.Tensor:
    """What the drafting model draws from."""
    return DRAFT[context].softmax(-1)


@dataclass(frozen=True)
class Shape:
    """A tree by the number of children of each node, breadth first; nodes not named are leaves.

    `drawn_from` and `recorded` are equal in a drafter that is right; None means certain proposals, the likeliest first.
    """

    children: tuple[int, ...]
    drawn_from: Callable[[Context], torch.Tensor] | None
    recorded: Callable[[Context], torch.Tensor] | None = None

    def draft(self, tokens: Context, generator: torch.Generator) -> Draft:
        """Grow the tree behind `tokens`, as deep as the text still goes."""
        paths, parents, drawn_from = [tokens], [-1], []
        for node, count in enumerate(self.children):
            if node == len(paths):
                break
            context = paths[node]
            if len(context) >= LENGTH - 1:
                continue
            for token in self._candidates(context, count, generator):
                paths.append((*context, token))
                parents.append(node - 1)
                drawn_from.append((self.recorded or self.drawn_from or own_distribution)(context))
        probabilities = tuple(drawn_from) if self.drawn_from else None
        return Draft(tuple(path[-1] for path in paths[1:]), probabilities, tuple(parents[1:]))

    def _candidates(self, context: Context, count: int, generator: torch.Generator) -> Sequence[int]:
        if self.drawn_from is None:
            return DRAFT[context].topk(count).indices.tolist()
        return draw_without_replacement(self.drawn_from(context), count, generator)


def generate(shape: Shape, request: GenerationRequest, generator: torch.Generator) -> Context:
    """`LENGTH` tokens in as many verification steps as it takes."""
    tokens: Context = ()
    while len(tokens) < LENGTH:
        draft = shape.draft(tokens, generator)
        logits = torch.stack([TARGET[path] for path in paths_of(tokens, draft)])
        tokens += verify(request, [*request.input_ids, *tokens], draft, logits, generator).token_ids
    return tokens


def paths_of(tokens: Context, draft: Draft) -> list[Context]:
    """The context of the root and of each node: what the target's logits rows belong to."""
    paths = [tokens]
    for token, parent in zip(draft.token_ids, draft.parents or range(-1, len(draft.token_ids) - 1), strict=True):
        paths.append((*paths[parent + 1], token))
    return paths


@cache
def exact(request: GenerationRequest) -> dict[Context, float]:
    """Probability of each text of `LENGTH` tokens, from the target alone."""
    found = {}
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        likelihood = 1.0
        for place, token in enumerate(text):
            row = adjusted(TARGET[text[:place]], request, [*request.input_ids, *text[:place]])
            likelihood *= float(distribution(row, request.sampling)[token])
        found[text] = likelihood
    return found


@dataclass(frozen=True)
class Distance:
    """Pearson's statistic against its 99.99 % point, total variation, and texts that can never occur but did."""

    runs: int
    chi_square: float
    limit: float
    total_variation: float
    impossible: int

    @property
    def fits(self) -> bool:
        """True when nothing speaks against the distribution: 64 cells of noise alone vary by 2.8 / sqrt(runs)."""
        close = self.total_variation < 4 / math.sqrt(self.runs)
        return self.chi_square < self.limit and close and not self.impossible


def distance(shape: Shape, request: GenerationRequest, runs: int, seed: int = 11) -> Distance:
    """Generate `runs` texts and compare; texts expected fewer than five times count as one."""
    generator, expected = torch.Generator().manual_seed(seed), exact(request)
    counts = dict.fromkeys(expected, 0)
    for _ in range(runs):
        counts[generate(shape, request, generator)] += 1
    frequent = [text for text, likelihood in expected.items() if likelihood * runs >= 5]
    seen = [counts[text] for text in frequent]
    wanted = [expected[text] * runs for text in frequent]
    cells = [*zip(seen, wanted, strict=True), (runs - sum(seen), runs - sum(wanted))]
    chi_square = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 1)
    variation = sum(abs(counts[text] / runs - likelihood) for text, likelihood in expected.items()) / 2
    impossible = sum(counts[text] for text, likelihood in expected.items() if likelihood == 0)
    return Distance(runs, chi_square, chi_square_limit(len(frequent)), variation, impossible)


def chi_square_limit(freedom: int) -> float:
    """The 99.99 % point, by the approximation of Wilson and Hilferty (1931): within 2 % from 10 degrees on."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.719 * math.sqrt(part)) ** 3
