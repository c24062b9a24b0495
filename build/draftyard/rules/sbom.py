"""The bill of materials of a release, as a CycloneDX 1.6 document without any time or chance in it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftyard.nouns.digest import Json, digest

# A text of SPDX's form; other licence fields are names (CycloneDX 1.6, component.licenses).
_SPDX = re.compile(r"[A-Za-z0-9.+\-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+\-]+)*")


@dataclass(frozen=True, slots=True)
class Component:
    """One part: a Python distribution, a model, a container image or a library.

    `kind` is a CycloneDX component type, `licence` a text as its author gave it, `sha256` that of its file ("": none).
    """

    kind: str
    name: str
    version: str
    licence: str = ""
    sha256: str = ""
    purl: str = ""
    spdx: bool = False


def bill_of_materials(root: Component, parts: Sequence[Component]) -> Mapping[str, Json]:
    """The document; parts are sorted, and the serial number follows from the content."""
    components = [_component(one) for one in sorted(parts, key=lambda one: (one.kind, one.name, one.version))]
    reference = _reference(root)
    body: dict[str, Json] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(root)},
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": sorted({_reference(one) for one in parts})}],
    }
    return {**body, "serialNumber": _serial(body)}


def distribution_purl(name: str, version: str) -> str:
    """The package URL of a Python distribution, with the normalised name (purl type `pypi`)."""
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def _component(one: Component) -> dict[str, Json]:
    found: dict[str, Json] = {"type": one.kind, "bom-ref": _reference(one), "name": one.name, "version": one.version}
    if one.licence:
        if one.spdx and _SPDX.fullmatch(one.licence):
            found["licenses"] = [{"expression": one.licence}]
        else:
            found["licenses"] = [{"license": {"name": one.licence}}]
    if one.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
    if one.purl:
        found["purl"] = one.purl
    return found


def _reference(one: Component) -> str:
    return one.purl or f"{one.kind}:{one.name}@{one.version}"


def _serial(body: Json) -> str:
    """A version 8 UUID (RFC 9562): its bits are those of the content's digest."""
    text = digest(body)
    variant = "89ab"[int(text[16], 16) % 4]
    return f"urn:uuid:{text[:8]}-{text[8:12]}-8{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"
