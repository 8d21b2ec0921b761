"""Unit tests for the MoE runners of TRTLLM-gen kernels on SM12x: no server, no
model loading.

Their kernels are prebuilt for SM100, SM103 and SM107 only, so a server on SM12x would
fail in its first forward pass.
"""

from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=8, suite="base-a-test-cpu")

import unittest

from sglang.srt.arg_groups.moe_hook import handle_moe_kernel_config
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import ServerArgs
from sglang.test.test_utils import CustomTestCase

TRTLLM_GEN = [
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "experimental_sgl_trtllm",
]
OTHERS = ["flashinfer_cutlass", "flashinfer_mxfp4", "cutlass", "triton"]
ROLES = ["moe_runner_backend", "speculative_moe_runner_backend"]


def _resolve(is_sm120, device="cuda", **asked):
    """The MoE runners, of the model and of a draft, that a server gets."""
    server_args = ServerArgs(
        model_path="dummy", device=device, quantization="modelopt_fp4", **asked
    )
    with override_platform(
        is_blackwell=True, is_sm100=not is_sm120, is_sm120=is_sm120
    ):
        handle_moe_kernel_config(server_args)
    view = resolved_view(server_args)
    return {role: getattr(view, role) for role in asked if role in ROLES}


class TestMoeTrtllmRunnerSm120(CustomTestCase):
    def test_trtllm_gen_is_refused_on_sm120(self):
        for role in ROLES:
            for runner in TRTLLM_GEN:
                with self.subTest(role=role, runner=runner):
                    with self.assertRaisesRegex(ValueError, f"{runner} .*SM12x"):
                        _resolve(True, **{role: runner})

    def test_other_runners_are_kept_on_sm120(self):
        for runner in OTHERS:
            with self.subTest(runner=runner):
                asked = {"moe_runner_backend": runner}
                self.assertEqual(_resolve(True, **asked), asked)

    def test_sm100_keeps_all_of_them(self):
        for role in ROLES:
            for runner in TRTLLM_GEN:
                with self.subTest(role=role, runner=runner):
                    self.assertEqual(_resolve(False, **{role: runner}), {role: runner})

    def test_a_server_on_the_cpu_is_left_alone(self):
        for runner in TRTLLM_GEN:
            with self.subTest(runner=runner):
                asked = {"moe_runner_backend": runner}
                self.assertEqual(_resolve(True, device="cpu", **asked), asked)


if __name__ == "__main__":
    unittest.main()
