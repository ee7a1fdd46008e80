"""Registered operators that no case covers, each with the reason."""

from __future__ import annotations

from typing import Mapping

_REASONS: Mapping[str, str] = {
    "it reads no array": """
        _arange _eye _full _linspace _ones _zeros _zeros_without_dtype _npi_arange _npi_blackman _npi_choice _npi_eye
        _npi_hamming _npi_hanning _npi_identity _npi_indices _npi_logspace _npi_ones _npi_zeros _random_exponential
        _random_gamma _random_generalized_negative_binomial _random_negative_binomial _random_normal _random_poisson
        _random_randint _random_uniform _sample_unique_zipfian _set_value _cvimread""",
    "it updates weights, which it writes into, and is in no graph that is trained": """
        _adamw_update _mp_adamw_update _multi_adamw_update _multi_lamb_update _multi_mp_adamw_update
        _multi_mp_lamb_update _contrib_group_adagrad_update _sparse_adagrad_update adam_update ftml_update ftrl_update
        lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1 mp_lamb_update_phase2 mp_nag_mom_update
        mp_sgd_mom_update mp_sgd_update multi_lars multi_mp_sgd_mom_update multi_mp_sgd_update multi_sgd_mom_update
        multi_sgd_update nag_mom_update preloaded_multi_mp_sgd_mom_update preloaded_multi_mp_sgd_update
        preloaded_multi_sgd_mom_update preloaded_multi_sgd_update reset_arrays rmsprop_update rmspropalex_update
        sgd_mom_update sgd_update signsgd_update signum_update""",
    "it computes with small integers and has no gradient": """
        _contrib_calibrate_entropy _contrib_dequantize _contrib_quantize _contrib_quantize_asym _contrib_quantized_act
        _contrib_quantized_batch_norm _contrib_quantized_concat _contrib_quantized_conv _contrib_quantized_elemwise_add
        _contrib_quantized_elemwise_mul _contrib_quantized_embedding _contrib_quantized_flatten
        _contrib_quantized_fully_connected _contrib_quantized_pooling _contrib_quantized_rnn _contrib_requantize""",
    "it is only there for GPUs": """
        _contrib_ModulatedDeformableConvolution _contrib_count_sketch _contrib_fft _contrib_ifft""",
    "it needs sparse arrays, which are never recomputed": """
        _contrib_SparseEmbedding _contrib_dgl_adjacency _contrib_dgl_csr_neighbor_non_uniform_sample
        _contrib_dgl_csr_neighbor_uniform_sample _contrib_dgl_graph_compact _contrib_dgl_subgraph _contrib_edge_id
        _contrib_getnnz _sparse_retain _square_sum""",
    "it decodes or changes pictures of bytes": """
        _cvcopyMakeBorder _cvimdecode _cvimresize _imdecode _image_random_brightness _image_random_color_jitter
        _image_random_contrast _image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue
        _image_random_lighting _image_random_saturation""",
    "MXNet does not know the shape of its output before it has run, and plans no memory for it": """
        _contrib_boolean_mask _npi_bincount _npi_delete _npi_unique _npx_nonzero""",
    "MXNet infers no shape for it in a symbol outside of its numpy mode": """
        _contrib_allclose _copyto _npi_dstack _npi_hstack _npi_norm _npi_powerd _npi_share_memory
        _npx_constraint_check _onehot_encode fill_element_0index""",
    "MXNet itself fails to differentiate it": """
        _image_resize _image_to_tensor _npi_copysign_scalar _npi_exponential _npi_rayleigh _npi_rcopysign_scalar""",
    "it is a mark in MXNet's own graphs, not an operator of a symbol": """
        _CachedOp _CachedOpThreadSafe _CrossDeviceCopy _CustomFunction _NDArray _Native _NoGradient""",
    "it takes the place of other operators for inference alone": """
        _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt""",
}
LEFT_OUT: Mapping[str, str] = {op: reason for reason, ops in _REASONS.items() for op in ops.split()}
