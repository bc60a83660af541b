from pathlib import Path
from types import ModuleType

import pytest

import dllm_decode
import samplers
from dllm_decode import CachePolicy, Verifier, blocks, caches, compatibility, verify
from dllm_decode.blocks import BlockSchedule
from eval.tasks import gsm8k_protocols
from samplers import ALL_SAMPLERS, Sampler

DOCS = Path(__file__).parents[2] / "docs"
CACHES = (DOCS / "caches.md").read_text(encoding="utf-8")
SAMPLERS = (DOCS / "samplers.md").read_text(encoding="utf-8")


def test_the_table_of_what_combines_is_the_one_that_the_code_prints() -> None:
    assert compatibility.table().strip() in CACHES


def test_every_sampler_is_in_the_table_of_samplers() -> None:
    names = [sampler.__name__ for sampler in ALL_SAMPLERS]
    assert not [name for name in names if f"`{name}" not in SAMPLERS]


@pytest.mark.parametrize(
    ("page", "package", "kind"),
    [
        ("samplers", samplers, Sampler),
        ("caches", caches, CachePolicy),
        ("blocks", blocks, BlockSchedule),
        ("verifiers", verify, Verifier),
    ],
)
def test_every_plug_in_is_on_its_page_of_the_reference(
    page: str, package: ModuleType, kind: type
) -> None:
    """The pages had the contracts only, so that no page listed arguments."""
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    shown = [line.removeprefix("::: ") for line in text.splitlines() if line.startswith("::: ")]
    exported = {name: getattr(package, name) for name in package.__all__}
    wanted = [name for name, value in exported.items() if isinstance(value, type)]
    assert sum(issubclass(exported[name], kind) for name in wanted) >= 5
    assert not set(wanted) - {name.rpartition(".")[2] for name in shown}
    packages = {"samplers": samplers, "dllm_decode": dllm_decode}
    packages |= {
        f"dllm_decode.{part.__name__.rpartition('.')[2]}": part for part in (caches, blocks, verify)
    }
    for name in shown:
        module, _, last = name.rpartition(".")
        assert hasattr(packages[module], last), name


def test_the_protocols_of_gsm8k_are_those_of_the_code() -> None:
    documented = gsm8k_protocols.__doc__
    assert documented is not None
    rows = [line for line in documented.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(gsm8k_protocols.PROTOCOLS)
    assert "\n".join(rows) in (DOCS / "evaluation.md").read_text(encoding="utf-8")


def test_no_placeholder_is_left() -> None:
    for document in DOCS.glob("*.md"):
        assert "<!--" not in document.read_text(encoding="utf-8"), document
