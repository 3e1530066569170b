"""Tests of which every n-th case runs by default.

Their cases compile kernels for every size and dtype, or run kernels of GPUs thread by thread in
Python. All of them run with `-m slow` or on a GPU. Where cases are a product of parameters, n has
no factor in common with the length of the inner one: the sample has every value of each.
"""

SAMPLED = {
    "test_against_reference.py": {
        "test_arithmetic": 9,
        "test_casts": 3,
        "test_contraction": 3,
        "test_integer_like": 3,
        "test_reductions": 27,
        "test_scans_and_sorts": 21,
        "test_views": 2,
    },
    "test_against_scipy.py": {
        "test_continuous": 3,
        "test_discrete": 2,
    },
    "test_against_torch.py": {
        "test_case": 69,
    },
    "test_algorithms.py": {
        "test_gptq_is_the_papers_algorithm": 2,
    },
    "test_argmax_simd.py": {
        "test_ties_and_extreme_values": 5,
    },
    "test_attention.py": {
        "test_as_pytorch": 3,
        "test_dropout_is_the_same_in_both_directions": 2,
        "test_narrow_floats_are_summed_in_float32": 2,
        "test_the_number_of_threads_does_not_show": 2,
    },
    "test_attention_heads.py": {
        "test_heads_of_one_projection": 2,
    },
    "test_attention_layers.py": {
        "test_a_cache_gives_what_the_whole_gives": 3,
    },
    "test_attention_split_keys.py": {
        "test_few_queries": 5,
    },
    "test_autotune.py": {
        "test_every_choice_gives_the_same_bits": 2,
    },
    "test_bitonic_sorts.py": {
        "test_lengths_and_dtypes": 2,
    },
    "test_blocked_factorisations.py": {
        "test_registers_show_in_no_result": 7,
    },
    "test_checkpoint.py": {
        "test_same_derivatives": 2,
    },
    "test_column_packing.py": {
        "test_columns_of_narrow_matrices": 15,
    },
    "test_contraction.py": {
        "test_dot_inner_outer_kron": 2,
    },
    "test_control.py": {
        "test_gradients_of_a_loops_weights_are_summed_after_it": 2,
        "test_scan_derivatives": 2,
    },
    "test_convolution.py": {
        "test_values_and_gradients": 13,
    },
    "test_cosine.py": {
        "test_types_lengths_and_norms": 7,
    },
    "test_cpu_gemm.py": {
        "test_attention_in_narrower_vectors": 3,
        "test_narrower_vectors_give_the_same_bits": 2,
        "test_values": 31,
    },
    "test_densities_against_torch.py": {
        "test_density_and_moments": 15,
        "test_density_in_float32": 2,
        "test_divergence": 13,
    },
    "test_determinism.py": {
        "test_bits_do_not_depend_on_threads": 3,
    },
    "test_diffusion_models.py": {
        "test_samples_have_the_distribution_of_the_data": 2,
    },
    "test_distribution_draws.py": {
        "test_draws": 7,
        "test_the_same_stream_on_every_device": 2,
    },
    "test_distributions.py": {
        "test_draws_move_as_their_quantiles_do": 2,
        "test_expand": 5,
        "test_jacobians": 3,
        "test_maps_onto_constraints": 3,
    },
    "test_draws.py": {
        "test_distribution": 7,
    },
    "test_dtypes.py": {
        "test_casts": 3,
    },
    "test_elementwise.py": {
        "test_complex_derivatives": 7,
        "test_complex_special_values": 3,
        "test_complex_values": 3,
    },
    "test_expressions.py": {
        "test_same_as_numpy": 3,
    },
    "test_factor.py": {
        "test_factorisations_by_threads": 2,
        "test_factorisations_on_the_device": 11,
        "test_hermitian_eigenproblems_by_tridiagonal_matrices": 2,
        "test_singular_values_by_bidiagonal_matrices": 2,
        "test_symmetric_eigenproblems_by_tridiagonal_matrices": 3,
    },
    "test_few_columns.py": {
        "test_small_matrices": 3,
    },
    "test_fft.py": {
        "test_four_steps_on_the_cpu": 3,
    },
    "test_fft_gpu.py": {
        "test_columns": 2,
        "test_convolutions_with_a_chirp": 3,
        "test_real_rows_in_shared_memory": 2,
        "test_rows_in_shared_memory": 3,
        "test_rows_in_steps": 2,
    },
    "test_formats.py": {
        "test_errors": 7,
        "test_gguf_blocks": 3,
        "test_groups_of_zeros": 2,
        "test_odd_shapes": 7,
    },
    "test_fuzz.py": {
        "test_a_random_program_agrees_with_the_reference": 13,
        "test_a_random_step_is_the_same_under_jit": 7,
    },
    "test_gpu_gemm.py": {
        "test_every_tile_shape": 11,
        "test_matmul": 11,
        "test_misaligned_memory": 3,
        "test_split_k": 2,
        "test_square_warps": 7,
        "test_wgmma_tiles_of_64_rows": 2,
    },
    "test_implicit_gemm_conv.py": {
        "test_simt_values_and_gradients": 5,
        "test_values_and_gradients": 11,
    },
    "test_indexing.py": {
        "test_dtypes": 2,
    },
    "test_integer_arguments.py": {
        "test_every_integer_of_the_op_table": 69,
    },
    "test_jax_programs.py": {
        "test_program_learns": 2,
    },
    "test_language_models.py": {
        "test_greedy_tokens": 3,
        "test_logits_and_gradients": 2,
    },
    "test_lapack.py": {
        "test_derivatives_are_those_of_native_kernels": 2,
        "test_rectangular": 3,
    },
    "test_large.py": {
        "test_least_squares_by_triangles": 3,
        "test_stacks_are_factorised": 2,
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
        "test_casts": 5,
    },
    "test_long_chains.py": {
        "test_gradients_are_those_of_one_kernel": 2,
        "test_number_of_kernels_does_not_grow": 2,
        "test_work_grows_no_faster_than_the_length": 3,
    },
    "test_losses.py": {
        "test_ctc": 2,
    },
    "test_lowering_templates.py": {
        "test_numbers_are_those_of_lowering": 2,
    },
    "test_manipulation.py": {
        "test_against_numpy": 2,
    },
    "test_math.py": {
        "test_error_is_within_its_bar": 7,
        "test_narrower_vectors_give_the_same_bits": 2,
    },
    "test_minimize.py": {
        "test_minima": 7,
    },
    "test_models.py": {
        "test_model": 2,
    },
    "test_nan_payloads.py": {
        "test_every_nan_stays_one": 3,
    },
    "test_nonsymmetric.py": {
        "test_backward_error": 3,
        "test_backward_error_of_pencils": 2,
    },
    "test_numpy_options.py": {
        "test_margins": 3,
    },
    "test_ops.py": {
        "test_gradients_on_the_device": 11,
        "test_jit": 7,
        "test_values_in_the_first_dtype": 11,
        "test_vmap": 5,
    },
    "test_optim_against_torch.py": {
        "test_state_goes_over": 7,
        "test_ten_steps": 5,
    },
    "test_out.py": {
        "test_out_takes_the_result": 7,
    },
    "test_packed_gemv.py": {
        "test_codes_are_unpacked_once_for_many_rows": 2,
        "test_tensor_cores": 3,
    },
    "test_padded_gemm_conv.py": {
        "test_depthwise_values_and_gradients": 7,
        "test_values_and_gradients": 15,
        "test_winograd_values_and_gradients": 2,
    },
    "test_plan_templates.py": {
        "test_groups_are_those_of_fusion": 2,
    },
    "test_pointwise_transpose.py": {
        "test_transposes": 2,
    },
    "test_quantized_models.py": {
        "test_trained_layers_fold_to_what_they_computed": 2,
    },
    "test_quantized_products.py": {
        "test_packed_products_are_exact": 2,
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
    "test_render_ptx.py": {
        "test_graphs_become_ptx": 2,
        "test_older_devices_use_mma_sync": 2,
    },
    "test_reshape_index.py": {
        "test_reshape_of_a_transpose": 3,
    },
    "test_rules.py": {
        "test_a_missing_tangent_is_zero": 3,
        "test_batching": 2,
        "test_derivatives_are_linear_even_at_zero": 3,
        "test_derivatives_in_single_precision": 3,
        "test_second_derivatives": 2,
    },
    "test_saving.py": {
        "test_a_checkpoint_is_loaded_as_a_whole_or_not_at_all": 3,
    },
    "test_scan.py": {
        "test_every_schedule": 5,
    },
    "test_scan_columns.py": {
        "test_cumulative_sums": 2,
    },
    "test_scan_derivatives.py": {
        "test_running_reductions": 3,
    },
    "test_scatter.py": {
        "test_many_updates_of_few_elements": 3,
    },
    "test_scatter_gpu.py": {
        "test_other_modes_and_many_destinations": 3,
        "test_rows_are_added_to": 3,
    },
    "test_searching.py": {
        "test_sort_dtypes": 7,
    },
    "test_semi_structured.py": {
        "test_sparse_tensor_cores": 3,
    },
    "test_shifted_variance.py": {
        "test_variances_are_accurate": 2,
    },
    "test_simt_kernels.py": {
        "test_arg_reductions_of_initial_values": 2,
        "test_onesweep_sorts": 3,
        "test_reductions": 3,
    },
    "test_simulations.py": {
        "test_simulation_agrees_with_numpy": 2,
    },
    "test_small.py": {
        "test_singular_values": 2,
        "test_systems": 5,
    },
    "test_solvers.py": {
        "test_backward_error_of_lu": 5,
    },
    "test_sort.py": {
        "test_any_distribution": 3,
        "test_every_dtype": 13,
    },
    "test_sparse_direct.py": {
        "test_solutions": 5,
    },
    "test_sparse_qr.py": {
        "test_factors": 2,
    },
    "test_sparse_solvers.py": {
        "test_callbacks": 2,
    },
    "test_sparse_tensors.py": {
        "test_operations": 7,
    },
    "test_special_points.py": {
        "test_complex_functions_on_axes": 3,
        "test_rows_of_zeros_and_ties": 2,
    },
    "test_special_values.py": {
        "test_branches_of_lambertw": 2,
        "test_of_parameters": 5,
    },
    "test_spectra.py": {
        "test_backward_error_of_qr": 2,
    },
    "test_stiff.py": {
        "test_robertson": 2,
    },
    "test_strategies.py": {
        "test_strategies_of_a_trainer": 2,
    },
    "test_summation.py": {
        "test_errors_of_products_are_those_of_a_block": 3,
    },
    "test_template_cache.py": {
        "test_products_are_those_of_the_first_time": 3,
    },
    "test_thread_blocks.py": {
        "test_as_rendered": 7,
        "test_rows_of_several_ctas": 11,
        "test_shared_memory": 2,
    },
    "test_trainer.py": {
        "test_resumed_is_the_same_bit_for_bit": 2,
    },
    "test_transformed_layers.py": {
        "test_batched": 7,
        "test_derivatives_of_recurrent_layers": 3,
        "test_traced": 5,
    },
    "test_transforms.py": {
        "test_a_key_gives_the_same_images": 2,
        "test_values_are_those_of_torchvision": 2,
    },
    "test_view_writes.py": {
        "test_in_place_forms_are_their_functions": 3,
    },
    "test_vision_models.py": {
        "test_small_models": 5,
    },
    "test_vjp_cache.py": {
        "test_other_numbers_and_layouts": 5,
        "test_the_sixth_gradient_is_the_first": 3,
    },
    "test_vmap.py": {
        "test_gradients_per_example": 2,
    },
    "test_webgpu_kernels.py": {
        "test_attention_and_its_gradients": 5,
        "test_convolutions_and_their_gradients": 9,
        "test_matmul_of_all_operand_layouts": 5,
    },
    "test_webgpu_limits.py": {
        "test_buffers_larger_than_a_binding": 2,
    },
    "test_webgpu_ops.py": {
        "test_gradients": 5,
    },
    "test_wgmma_attention.py": {
        "test_operands_that_are_views_or_expressions": 2,
        "test_simt_values_and_gradients": 5,
        "test_values_and_gradients": 7,
    },
    "test_where_results_are.py": {
        "test_results_are_where_operands_are": 3,
    },
    "test_winograd.py": {
        "test_values_and_epilogues": 3,
    },
}
