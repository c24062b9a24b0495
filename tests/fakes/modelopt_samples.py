"""Token ids that both calibrators are shown; the words of the tests' tokenizer are w4 to w46."""

import random

SAMPLES = tuple(tuple(random.Random(seed).randrange(4, 47) for _ in range(12)) for seed in range(6))
