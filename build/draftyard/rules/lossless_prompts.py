"""Prompts on which drafts are long and false matches many: where a fault of verification shows first."""

from draftyard.nouns.prompt import Message, Prompt

_MARKUP = """Fill in the last row like the others. Answer with the whole table.
<<a><b>1</b><c>one</c></a>
<<a><b>2</b><c>two</c></a>
<<a><b>3</b><c>three</c></a>
<<b><b>4</b><c>"""
_TOOL_CALLS = """Write the next call in the same form.
<<call name="add"><<arg>1<</arg><<arg>2<</arg><</call>
<<call name="add"><<arg>3<</arg><<arg>4<</arg><</call>
<<call name="sub"><<arg>"""
_CODE = """Write this function again, with the name `total` in place of `result`:
def weighted(values, weights):
    result = 0
    for value, weight in zip(values, weights):
        result = result + value * weight
    return result
"""
_LOOPS = """Continue the pattern for c and d:
for a in range(3):
    print("a", a)
for b in range(3):
    print("b", b)
"""
_LIST = """Repeat this list exactly, line by line:
red apple
green apple
red apple
green pear
red pear
green apple
"""
_EDIT = """Copy this text and write 2031 in place of every 2030:
In 2030 the bridge was closed. In 2030 the ferry ran twice a day. After 2030 nobody asked for the ferry."""
_ROWS = """Copy this table, and add a row for Sunday with 0:
day,visitors
Thursday,120
Friday,120
Saturday,121
"""
_PROSE = "Tell a short story of a lamp that is lit every evening, and end each sentence with the word evening."

TRAPS: tuple[Prompt, ...] = tuple(
    Prompt(f"trap-{name}", domain, "test", "short", (Message("user", text),))
    for name, domain, text in (
        ("markup", "repetitive markup", _MARKUP),
        ("calls", "repetitive markup", _TOOL_CALLS),
        ("rename", "code", _CODE),
        ("loops", "code", _LOOPS),
        ("list", "copy", _LIST),
        ("edit", "copy", _EDIT),
        ("rows", "copy", _ROWS),
        ("refrain", "prose", _PROSE),
    )
)


def lossless_prompts(pack: tuple[Prompt, ...], each_domain: int) -> tuple[Prompt, ...]:
    """The traps, and the first prompts of each domain of the pack."""
    chosen: list[Prompt] = list(TRAPS)
    taken: dict[str, int] = {}
    for prompt in sorted(pack, key=lambda one: one.id):
        taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
        if taken[prompt.domain] <= each_domain:
            chosen.append(prompt)
    return tuple(chosen)
