"""The static tree that Medusa heads are verified with: which candidate of which head goes where."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftyard.nouns.errors import Failure


@dataclass(frozen=True, slots=True)
class MedusaTree:
    """Node i is candidate `ranks[i]` (0: the likeliest) of head `depths[i]`, behind node `parents[i]` (-1: the root).

    Nodes lie breadth first, so that each prefix of them is a tree as well.
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    ranks: tuple[int, ...]

    def prefix(self, nodes: int, depth: int) -> int:
        """How many of the first nodes fit into `nodes` nodes and paths of at most `depth` tokens."""
        return min(nodes, sum(at < depth for at in self.depths))

    def widths(self, nodes: int) -> tuple[int, ...]:
        """Candidates that the first `nodes` nodes need of each head, from the first head on."""
        widths = [0] * (max(self.depths[:nodes], default=-1) + 1)
        for depth, rank in zip(self.depths[:nodes], self.ranks[:nodes], strict=True):
            widths[depth] = max(widths[depth], rank + 1)
        return tuple(widths)


def medusa_tree(choices: Sequence[Sequence[int]], heads: int, vocabulary: int) -> MedusaTree:
    """The tree of paths such as [[0], [0, 0], [1]]: ranks of the candidates, one per head, every prefix present.

    Failure when it is no tree, deeper than there are heads or wider than the vocabulary. Paths of one length keep their
    order: what is given first is tried first and trimmed last. (`medusa_choices` of TensorRT-LLM 1.2.1; Cai et al.,
    "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", 2024, section 2.1.2.)
    """
    paths = sorted((tuple(path) for path in choices), key=len)
    place: dict[tuple[int, ...], int] = {(): -1}
    for path in paths:
        if path in place:
            raise Failure(f"the choice {list(path)} occurs twice or is empty", "give each node of the tree once")
        if path[:-1] not in place:
            raise Failure(f"the choice {list(path)} has no parent {list(path[:-1])}", "add every prefix of a path")
        if not 0 <= path[-1] < vocabulary:
            raise Failure(f"rank {path[-1]} of a choice is outside 0..{vocabulary - 1}", "use smaller ranks")
        place[path] = len(place) - 1
    deepest = max((len(path) for path in paths), default=0)
    if deepest > heads:
        raise Failure(f"choices of {deepest} levels need as many Medusa heads and there are {heads}", "cut the paths")
    return MedusaTree(
        tuple(place[path[:-1]] for path in paths),
        tuple(len(path) - 1 for path in paths),
        tuple(path[-1] for path in paths),
    )
