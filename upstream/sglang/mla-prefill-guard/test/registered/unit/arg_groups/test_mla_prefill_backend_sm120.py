"""Unit tests for the trtllm_mla checks on SM12x: no server, no model loading.

Prefill of trtllm_mla runs a TRTLLM-gen kernel, which exists for SM100 only. Decode
has a kernel on SM12x (XQA), so trtllm_mla stays allowed where it decodes only.
"""

from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")

import unittest
from types import SimpleNamespace

from sglang.srt.arg_groups.overrides import _mla_kv_cache_dtype_checks
from sglang.srt.runtime_context import override_platform
from sglang.test.test_utils import CustomTestCase

# What the checks read of the resolved arguments.
DEFAULTS = {
    "device": "cuda",
    "attention_backend": None,
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
    "speculative_draft_attention_backend": None,
    "kv_cache_dtype": "auto",
}
PREFILLS = [
    {"attention_backend": "trtllm_mla"},
    {"attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e4m3"},
    {"attention_backend": "trtllm_mla", "decode_attention_backend": "flashinfer"},
    {
        "prefill_attention_backend": "trtllm_mla",
        "decode_attention_backend": "flashinfer",
    },
    {
        "attention_backend": "flashinfer",
        "speculative_draft_attention_backend": "trtllm_mla",
    },
]
DECODES_ONLY = [
    {
        "prefill_attention_backend": "flashinfer",
        "decode_attention_backend": "trtllm_mla",
    },
    {"attention_backend": "triton", "decode_attention_backend": "trtllm_mla"},
    {
        "attention_backend": "trtllm_mla",
        "prefill_attention_backend": "flashinfer",
        "kv_cache_dtype": "fp8_e4m3",
    },
]


def _check(asked, **platform):
    with override_platform(**platform):
        return _mla_kv_cache_dtype_checks(SimpleNamespace(**{**DEFAULTS, **asked}))


class TestMlaPrefillBackendSm120(CustomTestCase):
    def test_prefill_is_refused_on_sm120(self):
        for asked in PREFILLS:
            with self.subTest(**asked):
                with self.assertRaisesRegex(ValueError, "prefill on SM12x"):
                    _check(asked, is_blackwell=True, is_sm120=True)

    def test_decode_only_is_accepted_on_sm120(self):
        for asked in DECODES_ONLY:
            with self.subTest(**asked):
                self.assertEqual(_check(asked, is_blackwell=True, is_sm120=True), {})

    def test_other_backends_are_accepted_on_sm120(self):
        for backend in ("flashinfer", "triton"):
            with self.subTest(backend=backend):
                asked = {"attention_backend": backend}
                self.assertEqual(_check(asked, is_blackwell=True, is_sm120=True), {})

    def test_sm100_accepts_all_of_them(self):
        for asked in PREFILLS + DECODES_ONLY:
            with self.subTest(**asked):
                self.assertEqual(_check(asked, is_blackwell=True, is_sm120=False), {})

    def test_a_server_on_the_cpu_is_left_alone(self):
        asked = {"device": "cpu", "attention_backend": "trtllm_mla"}
        self.assertEqual(_check(asked, is_blackwell=True, is_sm120=True), {})


if __name__ == "__main__":
    unittest.main()
