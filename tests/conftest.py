"""Test configuration; tests in any folder can import the helpers next to this file."""

import gc
import os
from collections import Counter

import pytest
from hypothesis import settings

from numus.errors import DeviceError, DTypeError

# What a test run says depends on the code alone: every run draws the same examples. To go looking
# for new ones: `pytest --hypothesis-profile=search`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("steady")


def pytest_addoption(parser):
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write the kernels of tests/snapshots anew instead of comparing them",
    )


# Tests that compile kernels as users run them.
OPTIMISED = ("tests/kernels/", "tests/compiler/test_cpu_gemm.py")


def pytest_configure(config):
    # Most tests run each of their kernels once, on little data: LLVM's code generator takes longer
    # than everything else if it optimises. In slow tests it does.
    if config.option.markexpr == "not slow":
        os.environ.setdefault("NUMUS_OPT_LEVEL", "0")
    if "simt" in os.environ.get("NUMUS_TEST_DEVICES", "").split(","):
        import simt_machine

        simt_machine.install()


# Cases of these compile kernels for every size and dtype, or run kernels of GPUs thread by thread
# in Python. Every n-th one runs by default, all of them with `-m slow` or on a GPU. Where cases are
# a product of parameters, n has no factor in common with the length of the inner one: the sample
# has every value of each.
SAMPLED = {
    "test_lowering_templates.py": {
        "test_numbers_are_those_of_lowering": 2,
    },
    "test_searching.py": {
        "test_sort_dtypes": 3,
    },
    "test_webgpu_ops.py": {
        "test_gradients": 2,
    },
    "test_against_reference.py": {
        "test_arithmetic": 3,
        "test_casts": 3,
        "test_contraction": 3,
        "test_reductions": 2,
        "test_scans_and_sorts": 7,
    },
    "test_against_torch.py": {
        "test_case": 7,
    },
    "test_argmax_simd.py": {
        "test_ties_and_extreme_values": 5,
    },
    "test_attention.py": {
        "test_dropout_is_the_same_in_both_directions": 2,
        "test_narrow_floats_are_summed_in_float32": 2,
        "test_the_number_of_threads_does_not_show": 2,
    },
    "test_attention_layers.py": {
        "test_a_cache_gives_what_the_whole_gives": 3,
    },
    "test_column_packing.py": {
        "test_columns_of_narrow_matrices": 3,
    },
    "test_control.py": {
        "test_gradients_of_a_loops_weights_are_summed_after_it": 2,
    },
    "test_convolution.py": {
        "test_values_and_gradients": 4,
    },
    "test_cosine.py": {
        "test_types_lengths_and_norms": 3,
    },
    "test_cpu_gemm.py": {
        "test_attention_in_narrower_vectors": 3,
        "test_narrower_vectors_give_the_same_bits": 2,
        "test_values": 5,
    },
    "test_densities_against_torch.py": {
        "test_density_and_moments": 3,
        "test_divergence": 3,
    },
    "test_distribution_draws.py": {
        "test_draws": 3,
        "test_the_same_stream_on_every_device": 2,
    },
    "test_distributions.py": {
        "test_draws_move_as_their_quantiles_do": 2,
        "test_expand": 2,
    },
    "test_elementwise.py": {
        "test_complex_derivatives": 2,
    },
    "test_expressions.py": {
        "test_same_as_numpy": 3,
    },
    "test_factor.py": {
        "test_factorisations_by_threads": 2,
        "test_factorisations_on_the_device": 5,
        "test_symmetric_eigenproblems_by_tridiagonal_matrices": 3,
    },
    "test_few_columns.py": {
        "test_small_matrices": 3,
    },
    "test_fft.py": {
        "test_four_steps_on_the_cpu": 3,
    },
    "test_formats.py": {
        "test_odd_shapes": 2,
    },
    "test_fuzz.py": {
        "test_a_random_program_agrees_with_the_reference": 3,
        "test_a_random_step_is_the_same_under_jit": 2,
    },
    "test_gpu_gemm.py": {
        "test_every_tile_shape": 5,
        "test_matmul": 5,
        "test_misaligned_memory": 3,
        "test_split_k": 2,
        "test_square_warps": 3,
        "test_wgmma_tiles_of_64_rows": 2,
    },
    "test_implicit_gemm_conv.py": {
        "test_simt_values_and_gradients": 2,
        "test_values_and_gradients": 5,
    },
    "test_integer_arguments.py": {
        "test_every_integer_of_the_op_table": 17,
    },
    "test_lapack.py": {
        "test_rectangular": 3,
    },
    "test_least_squares.py": {
        "test_root": 3,
    },
    "test_llvm_addressing.py": {
        "test_strided_access": 4,
    },
    "test_llvm_arithmetic.py": {
        "test_integer_arithmetic": 3,
    },
    "test_llvm_casts.py": {
        "test_casts": 2,
    },
    "test_long_chains.py": {
        "test_gradients_are_those_of_one_kernel": 2,
    },
    "test_losses.py": {
        "test_ctc": 2,
    },
    "test_manipulation.py": {
        "test_against_numpy": 2,
    },
    "test_math.py": {
        "test_narrower_vectors_give_the_same_bits": 2,
    },
    "test_minimize.py": {
        "test_minima": 3,
    },
    "test_nonsymmetric.py": {
        "test_backward_error": 3,
        "test_backward_error_of_pencils": 2,
    },
    "test_ops.py": {
        "test_gradients_on_the_device": 2,
        "test_jit": 2,
        "test_values_in_the_first_dtype": 2,
        "test_vmap": 2,
    },
    "test_optim_against_torch.py": {
        "test_state_goes_over": 3,
        "test_ten_steps": 2,
    },
    "test_out.py": {
        "test_out_takes_the_result": 2,
    },
    "test_padded_gemm_conv.py": {
        "test_depthwise_values_and_gradients": 3,
        "test_values_and_gradients": 7,
    },
    "test_pointwise_transpose.py": {
        "test_transposes": 2,
    },
    "test_quantized_models.py": {
        "test_trained_layers_fold_to_what_they_computed": 2,
    },
    "test_reductions.py": {
        "test_norms": 5,
    },
    "test_register_rows.py": {
        "test_long_rows_span_several_ctas": 3,
        "test_register_rows": 3,
    },
    "test_render_llvm.py": {
        "test_map_has_every_tail": 5,
    },
    "test_rules.py": {
        "test_a_missing_tangent_is_zero": 3,
        "test_batching": 2,
        "test_derivatives_are_linear_even_at_zero": 3,
        "test_derivatives_in_single_precision": 3,
        "test_second_derivatives": 2,
    },
    "test_scan.py": {
        "test_every_schedule": 2,
    },
    "test_scatter.py": {
        "test_many_updates_of_few_elements": 3,
    },
    "test_scatter_gpu.py": {
        "test_other_modes_and_many_destinations": 3,
        "test_rows_are_added_to": 3,
    },
    "test_shifted_variance.py": {
        "test_variances_are_accurate": 2,
    },
    "test_simt_kernels.py": {
        "test_arg_reductions_of_initial_values": 2,
        "test_onesweep_sorts": 3,
        "test_reductions": 3,
    },
    "test_small.py": {
        "test_systems": 2,
    },
    "test_solvers.py": {
        "test_backward_error_of_lu": 5,
    },
    "test_sort.py": {
        "test_every_dtype": 13,
    },
    "test_sparse_direct.py": {
        "test_solutions": 5,
    },
    "test_sparse_tensors.py": {
        "test_operations": 2,
    },
    "test_stiff.py": {
        "test_robertson": 2,
    },
    "test_summation.py": {
        "test_errors_of_products_are_those_of_a_block": 3,
    },
    "test_template_cache.py": {
        "test_products_are_those_of_the_first_time": 3,
    },
    "test_thread_blocks.py": {
        "test_as_rendered": 3,
        "test_rows_of_several_ctas": 5,
    },
    "test_trainer.py": {
        "test_resumed_is_the_same_bit_for_bit": 2,
    },
    "test_transformed_layers.py": {
        "test_batched": 2,
        "test_derivatives_of_recurrent_layers": 3,
        "test_traced": 2,
    },
    "test_vjp_cache.py": {
        "test_other_numbers_and_layouts": 5,
    },
    "test_webgpu_kernels.py": {
        "test_attention_and_its_gradients": 3,
        "test_convolutions_and_their_gradients": 5,
        "test_matmul_of_all_operand_layouts": 3,
    },
    "test_webgpu_limits.py": {
        "test_buffers_larger_than_a_binding": 2,
    },
    "test_where_results_are.py": {
        "test_results_are_where_operands_are": 3,
    },
    "test_wgmma_attention.py": {
        "test_operands_that_are_views_or_expressions": 2,
        "test_simt_values_and_gradients": 5,
        "test_values_and_gradients": 7,
    },
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases that are slow; all tests may run with another default device, but for those that
    are about the CPU."""
    if "cuda" not in os.environ.get("NUMUS_TEST_DEVICES", ""):
        seen = Counter()
        for item in items:
            name = getattr(item, "originalname", "")
            every = SAMPLED.get(item.path.name, {}).get(name)
            if every is not None:
                if seen[item.path, name] % every:
                    item.add_marker(pytest.mark.slow)
                seen[item.path, name] += 1
    if os.environ.get("NUMUS_DEVICE", "cpu") == "cpu":
        return
    for item in items:
        mark = item.get_closest_marker("on_cpu")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"about the CPU: {mark.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Tests are millions of objects and no garbage: garbage collections need not visit them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _templates_in_memory():
    """Tests change the numbers of schedules: what they lower is for no other process."""
    from numus.compiler.lower import stored_templates

    stored_templates.enabled = False


@pytest.fixture(autouse=True, scope="module")
def _opt_level(request):
    """Kernels of some tests are compiled as users run them."""
    from numus.runtime import devices

    compiler = devices.device("cpu").runtime.compiler
    given = compiler.opt_level
    if request.node.nodeid.startswith(OPTIMISED):
        compiler.opt_level = 2
    yield
    compiler.opt_level = given


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_frozen():
    """Plans and templates of earlier modules are millions of objects: garbage collections, of
    which tests ask for many, visit what this module has made."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fast_gc():
    """Garbage collections of what a test makes alone, however many objects are there before."""
    gc.collect()
    gc.freeze()


# Features that a WebGPU adapter may lack: errors with tests of their own.
_MISSING = ("lacks the feature", "the feature shader-", "loop iteration limit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """With another default device, a missing feature is no failure."""
    try:
        return (yield)
    except (DeviceError, DTypeError) as error:
        other = os.environ.get("NUMUS_DEVICE", "cpu") != "cpu"
        if other and any(words in str(error) for words in _MISSING):
            pytest.skip(str(error))
        raise
