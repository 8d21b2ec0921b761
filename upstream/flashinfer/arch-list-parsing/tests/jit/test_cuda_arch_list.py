"""FLASHINFER_CUDA_ARCH_LIST as people write it. Runs without a GPU and without nvcc."""

import pytest

from flashinfer.compilation_context import CompilationContext


def _targets(monkeypatch, arch_list):
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", arch_list)
    return CompilationContext().TARGET_CUDA_ARCHS


def _targets_or_error(monkeypatch, arch_list):
    try:
        return _targets(monkeypatch, arch_list)
    except (ValueError, IndexError) as error:
        return error


@pytest.mark.parametrize(
    "arch_list",
    [
        "9.0a;12.1a",
        "9.0a,12.1a",
        "9.0a, 12.1a",
        "9.0a  12.1a",
        "9.0a\t12.1a",
        " 9.0a 12.1a\n",
        "9.0a;12.1a;",
    ],
)
def test_any_usual_separator_is_read(monkeypatch, arch_list):
    assert _targets_or_error(monkeypatch, arch_list) == {(9, "0a"), (12, "1a")}


@pytest.mark.parametrize(
    "arch_list, target",
    [
        ("7.5", (7, "5")),
        ("8.9", (8, "9")),
        ("9.0a", (9, "0a")),
        ("10.3a", (10, "3a")),
        ("12.0a", (12, "0a")),
        ("12.0f", (12, "0f")),
        ("12.1a", (12, "1a")),
        ("12.1", (12, "1a")),
    ],
)
def test_a_single_item_is_read(monkeypatch, arch_list, target):
    assert _targets(monkeypatch, arch_list) == {target}


@pytest.mark.parametrize("item", ["12.0+PTX", "12.0-real", "12.0b", "12."])
def test_an_sm12x_item_that_is_no_target_is_refused_by_name(monkeypatch, item):
    refusal = _targets_or_error(monkeypatch, f"9.0a {item}")
    assert isinstance(refusal, ValueError), f"{item} is read, and fails later"
    assert "FLASHINFER_CUDA_ARCH_LIST" in str(refusal)
    assert repr(item) in str(refusal)


@pytest.mark.parametrize("arch_list", ["", "  ", "120a", "sm_120a"])
def test_what_is_no_list_stays_an_error(monkeypatch, arch_list):
    with pytest.raises(ValueError):
        _targets(monkeypatch, arch_list)
