"""Writes what was found as JUnit XML, so that a build server shows each check and gate."""

from collections.abc import Sequence
from xml.etree import ElementTree

from draftyard.nouns.report import Report, VariantResult
from draftyard.nouns.report_part import Verdict


def junit_xml(report: Report) -> str:
    """One suite for each variant: its smoke checks, then its gates. An open gate counts as skipped."""
    root = ElementTree.Element("testsuites", name="draftyard verify")
    for variant in report.variants:
        root.append(_suite(variant, report))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(variant: VariantResult, report: Report) -> ElementTree.Element:
    cases = [
        _case(variant.name, "smoke", check.name, check.verdict, f"{check.measured}; expected {check.expected}")
        for check in variant.checks
    ]
    cases += [
        _case(
            variant.name, "gates", gate.gate, gate.verdict, f"{gate.measured}; required {gate.required}; {gate.reason}"
        )
        for gate in report.gates
        if gate.variant == variant.name
    ]
    suite = ElementTree.Element(
        "testsuite",
        name=variant.name,
        timestamp=report.created_at,
        tests=str(len(cases)),
        failures=_count(cases, "failure"),
        skipped=_count(cases, "skipped"),
        errors="0",
    )
    suite.extend(cases)
    return suite


def _case(variant: str, kind: str, name: str, verdict: Verdict, words: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=f"{variant}.{kind}", name=name)
    if verdict is not Verdict.PASS:
        tag = "failure" if verdict is Verdict.FAIL else "skipped"
        ElementTree.SubElement(case, tag, message=words.rstrip("; "))
    return case


def _count(cases: Sequence[ElementTree.Element], tag: str) -> str:
    return str(sum(case.find(tag) is not None for case in cases))
