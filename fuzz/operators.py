"""The operators of fuzzed symbols: templates of code, by their requirements on the line that they read.

``{0}`` is the line, ``{1}`` another of the same shape and type. Names in ``<...>`` are drawn for each use:
``<axis>`` of the line, ``<k>`` a number of channels, ``<n>`` the number of the line, ``<d0>``, ``<d1>``, ... its sizes.
"""

from __future__ import annotations


def _numpy(code: str) -> str:
    """A template of NumPy's operators (``mx.np``, ``mx.npx``), which have gradients of their own."""
    for line in ("{0}", "{1}"):
        code = code.replace(line, f"({line}).as_np_ndarray()")
    return f"({code}).as_nd_ndarray()"


NUMPY = tuple(
    _numpy(code) for code in (
        "{0} + {1}", "{0} + {1}", "{0} - {1}", "mx.sym.npx.sigmoid({0}) * {1}", "{0} / (mx.sym.np.abs({1}) + 1)",
        "{0} * 0.5 + 0.1", "1 - {0}", "mx.sym.npx.relu({0} + {1})", "mx.sym.np.tanh({0})", "mx.sym.npx.relu({0})",
        "{0} + mx.sym.np.mean({0}, axis=<axis>, keepdims=True)", "{0} - mx.sym.np.sum({1}, axis=<axis>, keepdims=True)",
        "mx.sym.np.where({0} > 0, {0}, {1})", "mx.sym.np.concatenate([{0}, {1}], axis=<axis>)",
        "mx.sym.np.stack([{0}, {1}], axis=0)", "mx.sym.np.transpose({0})", "mx.sym.npx.reshape({0}, newshape=(-1,))",
        "mx.sym.np.exp(mx.sym.np.tanh({0}))", "mx.sym.np.max({0}, axis=<axis>)", "mx.sym.np.copy({0})",
        "mx.sym.npx.dropout({0}, p=0.4)", "mx.sym.npx.leaky_relu({0}, act_type='gelu')",
    )
)  # fmt: skip
# zeros_like reads a product, only for its shape: MXNet leaves statistics of normalizations unwritten there.
ANY = (
    "mx.sym.tanh({0})", "mx.sym.sigmoid({0})", "mx.sym.relu({0})", "mx.sym.softsign({0})", "mx.sym.abs({0})",
    "mx.sym.Activation({0}, act_type='relu')", "mx.sym.Activation({0}, act_type='tanh')",
    "mx.sym.Activation({0}, act_type='softrelu')", "mx.sym.Activation({0}, act_type='sigmoid')",
    "mx.sym.Activation({0}, act_type='softsign')",
    "mx.sym.LeakyReLU({0}, act_type='leaky')", "mx.sym.LeakyReLU({0}, act_type='elu')",
    "mx.sym.LeakyReLU({0}, act_type='gelu')", "mx.sym.LeakyReLU({0}, act_type='selu')",
    "mx.sym.square(mx.sym.tanh({0}))", "mx.sym.exp(mx.sym.tanh({0}))", "mx.sym.log(mx.sym.abs({0}) + 1)",
    "mx.sym.sqrt(mx.sym.square(mx.sym.tanh({0})) + 0.1)", "mx.sym.clip({0}, a_min=-0.2, a_max=0.3)",
    "mx.sym.erf({0})", "mx.sym.sin({0})", "mx.sym.negative({0})", "mx.sym.rsqrt(mx.sym.abs({0}) + 1)",
    "{0} + {1}", "{0} + {1}", "{0} - {1}", "mx.sym.tanh({0}) * {1}", "mx.sym.elemwise_add({0}, {1})",
    "mx.sym.elemwise_mul({0}, mx.sym.sigmoid({1}))", "mx.sym.add_n({0}, {1}, {0})", "mx.sym.maximum({0}, {1})",
    "mx.sym.where({0} > 0, {1}, {0})", "{0} / (mx.sym.abs({1}) + 1)", "mx.sym.broadcast_add({0}, {1})",
    "{0} * 0.5", "1 - {0}", "{0} + 0.1", "{0} / 3", "mx.sym._internal._hypot({0}, {1})",
    "mx.sym.Dropout({0}, p=0.4)", "mx.sym.Dropout({0}, p=0.5, mode='always')", "mx.sym.Dropout({0}, p=0.0)",
    "mx.sym.BlockGrad({0})", "mx.sym.identity({0})", "mx.sym.Flatten({0})", "mx.sym.reshape({0}, shape=(-1,))",
    "mx.sym.reshape({0}, shape=(0, -1))", "mx.sym.transpose({0})", "mx.sym.expand_dims({0}, axis=1)",
    "mx.sym.Concat({0}, {1}, dim=<axis>)", "mx.sym.Concat({0}, {0}, dim=<axis>)", "mx.sym.stack({0}, {1}, axis=0)",
    "mx.sym.sum({0}, axis=<axis>)", "mx.sym.mean({0}, axis=<axis>, keepdims=True)", "mx.sym.max({0}, axis=<axis>)",
    "mx.sym.sum({0}, axis=<axis>, keepdims=True)", "mx.sym.flip({0}, axis=<axis>)",
    "mx.sym.tile({0}, reps=2)", "mx.sym.repeat({0}, repeats=2, axis=<axis>)",
    "mx.sym.slice_axis({0}, axis=<axis>, begin=0, end=1)", "mx.sym.slice_axis({0}, axis=<axis>, begin=1, end=None)",
    "mx.sym.zeros_like({0} * 2) + {1}", "mx.sym.ones_like({0} * 2)", "mx.sym.smooth_l1({0}, scalar=1.0)",
    "mx.sym.Custom({0}, op_type='fuzz_keeps')",
    "mx.sym.Cast(mx.sym.Cast({0}, dtype='float16'), dtype='float32')",
    "mx.sym.amp_cast(mx.sym.tanh(mx.sym.amp_cast({0}, dtype='float16')), dtype='float32')",
    "mx.sym.Cast(mx.sym.Cast({0} * 9, dtype='int32') % 3, dtype='float32') * {1}",
    "{0} + mx.sym.random.uniform(0, 0.1, shape=<shape>)",
    "mx.sym.broadcast_mul({0}, mx.sym.var('scale<n>', shape=<ones>))",
    "mx.sym.broadcast_lesser({0}, {1}) * {0}", "mx.sym.cumsum({0}, axis=<axis>)",
    "mx.sym.LayerNorm({0}, axis=<axis>)", *NUMPY,
)  # fmt: skip
# Not of float16, which these do not know on CPUs.
MATRIX = (
    "mx.sym.FullyConnected({0}, num_hidden=<k>)", "mx.sym.FullyConnected({0}, num_hidden=<k>)",
    "mx.sym.FullyConnected({0}, num_hidden=<k>, no_bias=True)", "mx.sym.LayerNorm({0})",
    "mx.sym.FullyConnected(mx.sym.Dropout({0}, p=0.3), num_hidden=<d1>)",
    "mx.sym.dot({0}, {1}, transpose_b=True)", "mx.sym.softmax({0})", "mx.sym.log_softmax({0})",
    "mx.sym.softmax({0}, axis=<axis>)", "mx.sym.L2Normalization({0})",
    "mx.sym.split({0}, num_outputs=2, axis=1)", "mx.sym.SliceChannel({0}, num_outputs=4, axis=1)",
    "mx.sym.LeakyReLU({0}, act_type='prelu')", "mx.sym.norm({0}, axis=1)",
    "mx.sym.pick({0}, mx.sym.var('below<d1>_<n>', shape=(<d0>,)))",
    "mx.sym.take({0}, mx.sym.var('below<d0>_<n>', shape=(5,)))",
    "mx.sym.batch_dot(mx.sym.expand_dims({0}, axis=1), mx.sym.expand_dims({1}, axis=2))",
    "mx.sym.linalg.gemm2({0}, {1}, transpose_a=True)", "mx.sym.amp_multicast({0}, {1}, num_outputs=2)",
    "mx.sym.topk({0}, ret_typ='value', k=2)", "mx.sym.argmax({0}, axis=1)",
    "mx.sym.BatchNorm({0}, fix_gamma=False)",
    "mx.sym.Embedding(mx.sym.BlockGrad(mx.sym.floor(mx.sym.sigmoid({0}) * 6)), input_dim=6, output_dim=<k>)",
    "mx.sym.contrib.cond(mx.sym.sum({0}) > 0, lambda: {0} * 2, lambda: {0} - {1})",
    "mx.sym.reshape({0}, shape=(0, -4, 2, -1))",
)  # fmt: skip
SEQUENCE = (
    "mx.sym.FullyConnected({0}, num_hidden=<k>, flatten=False)", "mx.sym.LayerNorm({0})", "mx.sym.softmax({0})",
    "mx.sym.batch_dot({0}, {1}, transpose_b=True)", "mx.sym.transpose({0}, axes=(1, 0, 2))",
    "mx.sym.SwapAxis({0}, dim1=0, dim2=2)", "mx.sym.SequenceReverse({0})",
    "mx.sym.batch_dot(mx.sym.softmax(mx.sym.batch_dot({0}, {1}, transpose_b=True)), {1})",
    "mx.sym.batch_dot(mx.sym.Dropout(mx.sym.softmax(mx.sym.batch_dot({0}, {1}, transpose_b=True) / 3), p=0.3), {1})",
    "mx.sym.batch_dot(mx.sym.Dropout(mx.sym.softmax(mx.sym.broadcast_add(mx.sym.batch_dot({0}, {1}, transpose_b=True), "
    "mx.sym.BlockGrad(mx.sym.var('mask<n>', shape=(1, <d1>, <d1>))))), p=0.2), {0})",
    "mx.sym.batch_dot(mx.sym.softmax(mx.sym.where(mx.sym.batch_dot({1}, {0}, transpose_b=True) > 0.1, mx.sym.batch_dot("
    "{0}, {1}, transpose_b=True), -1e9 * mx.sym.batch_dot({0}, {0}, transpose_b=True).ones_like())), {1})",
    "mx.sym.batch_dot(mx.sym.Dropout(mx.sym.softmax(mx.sym.batch_dot({0}, {0}, transpose_b=True), length=mx.sym.Cast("
    "mx.sym.var('below<d1>_<n>', shape=(<d0>, <d1>)), dtype='int32'), use_length=True, axis=-1), p=0.5), {1})",
    "mx.sym.batch_dot(mx.sym.softmax(mx.sym.transpose(mx.sym.SequenceMask(mx.sym.transpose(mx.sym.batch_dot({0}, {1}, "
    "transpose_b=True), axes=(2, 0, 1)), mx.sym.var('below<d1>_<n>', shape=(<d0>,)) * 0.5, use_sequence_length=True, "
    "value=-1e9), axes=(1, 2, 0))), {1})",
    "mx.sym.batch_dot(mx.sym.softmax(mx.sym.batch_dot({0}, {1}, transpose_b=True)), mx.sym.Dropout({1}, p=0.2))",
    "mx.sym.linalg.gemm2(mx.sym.Dropout(mx.sym.softmax(mx.sym.linalg.gemm2(mx.sym.expand_dims({0}, axis=1), "
    "mx.sym.expand_dims({1}, axis=1), transpose_b=True, alpha=0.5)), p=0.3), mx.sym.expand_dims({0}, axis=1))",
    "mx.sym.contrib.interleaved_matmul_encdec_valatt({0}, mx.sym.Dropout(mx.sym.softmax("
    "mx.sym.contrib.interleaved_matmul_encdec_qk(mx.sym.slice_axis({1}, axis=2, begin=0, end=<d2> // 2), {0}, "
    "heads=1)), p=0.3), heads=1)",
    "mx.sym.SequenceMask({0}, mx.sym.var('below<d0>_<n>', shape=(<d1>,)), use_sequence_length=True)",
    "mx.sym.SequenceReverse({0}, mx.sym.var('below<d0>_<n>', shape=(<d1>,)) + 1, use_sequence_length=True)",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(1, <d1>, <k>)), "
    "mx.sym.var('rnn<n>_c', shape=(1, <d1>, <k>)), state_size=<k>, num_layers=1, mode='lstm')",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(1, <d1>, <k>)), "
    "state_size=<k>, num_layers=1, mode='gru')",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(2, <d1>, <k>)), "
    "state_size=<k>, num_layers=2, mode='gru', p=0.2)",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.zeros(shape=(2, <d1>, <k>)), "
    "state_size=<k>, num_layers=1, bidirectional=True, mode='rnn_tanh')",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(1, <d1>, <k>)), "
    "state_size=<k>, num_layers=1, mode='rnn_relu', state_outputs=True)",
    "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(2, <d1>, <k>)), "
    "state_size=<k>, num_layers=2, mode='gru', state_outputs=True)[1]",
    "mx.sym.contrib.foreach(lambda x, s: (mx.sym.tanh(x + s), mx.sym.sigmoid(x) * s), {0}, "
    "mx.sym.var('state<n>', shape=(<d1>, <d2>)))[0]",
    "mx.sym.contrib.foreach(lambda x, s: (mx.sym.FullyConnected(x * s, num_hidden=<d2>), s + x), {0}, "
    "mx.sym.zeros(shape=(<d1>, <d2>)))[1]",
    "mx.sym.contrib.while_loop(lambda i, s: i < 3, lambda i, s: (mx.sym.tanh(s), (i + 1, s * 0.5)), "
    "(mx.sym.zeros(shape=(1,)), {0}), max_iterations=4)[0]",
    "mx.rnn.LSTMCell(<k>, prefix='lstm<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
    "mx.rnn.LSTMCell(<k>, prefix='lstm<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True, "
    "begin_state=[mx.sym.var('lstm<n>_h', shape=(<d1>, <k>)), mx.sym.var('lstm<n>_c', shape=(<d1>, <k>))])[0]",
    "mx.rnn.GRUCell(<k>, prefix='gru<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
    "mx.rnn.GRUCell(<k>, prefix='gru<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=False)[1][0]",
    "mx.rnn.LSTMCell(<k>, prefix='lstm<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=False)[0][-1]",
    "mx.rnn.RNNCell(<k>, prefix='rnn<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
    "mx.rnn.RNNCell(<k>, 'relu', prefix='rnn<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
    "mx.rnn.BidirectionalCell(mx.rnn.GRUCell(<k>, prefix='l<n>_'), mx.rnn.RNNCell(<k>, prefix='r<n>_'))"
    ".unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
    "mx.gluon.rnn.LSTMCell(<k>, prefix='glstm<n>_').unroll(<d0>, {0}, layout='TNC', merge_outputs=True, "
    "begin_state=[mx.sym.var('glstm<n>_h', shape=(<d1>, <k>)), mx.sym.var('glstm<n>_c', shape=(<d1>, <k>))])[0]",
    "mx.gluon.rnn.GRUCell(<k>, prefix='ggru<n>_').unroll(<d0>, {0}, layout='TNC', merge_outputs=True, "
    "begin_state=[mx.sym.var('ggru<n>_h', shape=(<d1>, <k>))])[0]",
    "mx.sym.Convolution({0}, kernel=(3,), pad=(1,), num_filter=<k>)",
    "mx.sym.Pooling({0}, kernel=(2,), pool_type='avg')", "mx.sym.BatchNorm({0}, fix_gamma=False)",
    "mx.sym.broadcast_add({0}, mx.sym.expand_dims(mx.sym.var('bias<n>', shape=(<d1>, <d2>)), axis=0))",
    "mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.Concat({0}, {0}, {0}, dim=2), heads=1)",
    "mx.sym.split({0}, num_outputs=2, axis=2)", "mx.sym.InstanceNorm({0}, mx.sym.var('gamma<n>', shape=(<d1>,)), "
    "mx.sym.var('beta<n>', shape=(<d1>,)))",
)  # fmt: skip
IMAGE = (
    "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<k>)",
    "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>)",
    "mx.sym.Convolution({0}, kernel=(1, 1), num_filter=<k>, no_bias=True)",
    "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), stride=(2, 2), num_filter=<k>)",
    "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>, num_group=<d1>)",
    "mx.sym.relu(mx.sym.BatchNorm(mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>)))",
    "mx.sym.Deconvolution({0}, kernel=(2, 2), num_filter=<k>)",
    "mx.sym.BatchNorm({0}, fix_gamma=False)", "mx.sym.BatchNorm({0})", "mx.sym.BatchNorm({0}, use_global_stats=True)",
    "mx.sym.Pooling({0}, kernel=(2, 2), stride=(2, 2), pool_type='max')",
    "mx.sym.Pooling({0}, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type='max')",
    "mx.sym.Pooling({0}, kernel=(2, 2), pool_type='avg')", "mx.sym.Pooling({0}, global_pool=True, pool_type='avg')",
    "mx.sym.LeakyReLU({0}, act_type='prelu')", "mx.sym.softmax({0}, axis=1)",
    "mx.sym.InstanceNorm({0})", "mx.sym.UpSampling({0}, scale=2, sample_type='nearest')",
    "mx.sym.Pad({0}, mode='edge', pad_width=(0, 0, 0, 0, 1, 1, 1, 1))", "mx.sym.SliceChannel({0}, num_outputs=2)",
    "mx.sym.Dropout({0}, p=0.3)", "mx.sym.Dropout({0}, p=0.3, axes=(2, 3))", "mx.sym.Concat({0}, {1}, dim=1)",
    "mx.sym.broadcast_mul({0}, mx.sym.sigmoid(mx.sym.Pooling({0}, global_pool=True, pool_type='avg')))",
    "mx.sym.reshape({0}, shape=(0, 0, -1))", "mx.sym.L2Normalization({0}, mode='channel')",
    "mx.sym.transpose({0}, axes=(0, 2, 3, 1))", "mx.sym.GroupNorm({0}, num_groups=1)",
)  # fmt: skip
HEADS = (
    "{0}", "{0}", "mx.sym.MakeLoss(mx.sym.sum(mx.sym.square({0})))", "mx.sym.sum({0})",
    "mx.sym.mean(mx.sym.square({0}))",
    "mx.sym.BlockGrad({0})", "mx.sym.LinearRegressionOutput({0}, mx.sym.var('label<n>'))",
    "mx.sym.LogisticRegressionOutput({0}, mx.sym.var('label<n>'))", "mx.sym.make_loss(mx.sym.abs({0}))",
    "mx.sym.pick(mx.sym.log_softmax(mx.sym.FullyConnected({0}, num_hidden=5)), mx.sym.var('below5_<n>'))",
    "mx.sym.pick(mx.sym.log_softmax(mx.sym.FullyConnected({0}, num_hidden=5)), mx.sym.var('below5_<n>'), "
    "keepdims=True)",
    "mx.sym.SoftmaxOutput(mx.sym.FullyConnected({0}, num_hidden=5), mx.sym.var('below5_<n>'))",
    "mx.sym.SoftmaxOutput(mx.sym.FullyConnected({0}, num_hidden=5), mx.sym.var('below5_<n>'), grad_scale=0.5, "
    "use_ignore=True, ignore_label=0, normalization='valid')",
)  # fmt: skip
# Layers of Gluon blocks, by the dimensions of what they read: the constructor, and after the @ how they are called.
LAYERS = {
    2: (
        "nn.Dense(<k>)@({0})", "nn.Dense(<d1>, activation='relu')@({0})", "nn.Dense(<k>, use_bias=False)@({0})",
        "nn.BatchNorm()@({0})", "nn.LayerNorm()@({0})", "nn.Dropout(0.4)@({0})", "nn.PReLU()@({0})", "nn.GELU()@({0})",
        "nn.SELU()@({0})", "nn.Activation('tanh')@({0})", "nn.LeakyReLU(0.1)@({0})", "nn.Swish()@({0})",
    ),
    3: (
        "nn.Dense(<k>, flatten=False)@({0})", "nn.LayerNorm()@({0})", "nn.Dropout(0.3)@({0})",
        "nn.Conv1D(<k>, 3, padding=1)@({0})", "nn.MaxPool1D(2)@({0})", "nn.InstanceNorm()@({0})",
        "rnn.LSTM(<k>)@({0})", "rnn.GRU(<k>)@({0})", "rnn.RNN(<k>)@({0})", "rnn.LSTM(<k>, bidirectional=True)@({0})",
        "rnn.GRU(<k>, num_layers=2, bidirectional=True)@({0})", "rnn.RNN(<k>, activation='tanh', num_layers=2)@({0})",
        "rnn.GRU(<k>, num_layers=2, dropout=0.2)@({0})",
        "rnn.LSTMCell(<k>)@.unroll(<d0>, {0}, layout='TNC', merge_outputs=True)[0]",
        "rnn.GRUCell(<k>)@.unroll(<d0>, {0}, layout='TNC', merge_outputs=True)[0]",
        "rnn.RNNCell(<k>)@.unroll(<d1>, {0}, layout='NTC', merge_outputs=True)[0]",
        "rnn.ZoneoutCell(rnn.LSTMCell(<k>), 0.2, 0.2)@.unroll(<d0>, {0}, layout='TNC', merge_outputs=True)[0]",
        "rnn.ResidualCell(rnn.GRUCell(<d2>))@.unroll(<d0>, {0}, layout='TNC', merge_outputs=True)[0]",
    ),
    4: (
        "nn.Conv2D(<k>, 3, padding=1)@({0})", "nn.Conv2D(<d1>, 3, padding=1, use_bias=False)@({0})",
        "nn.Conv2D(<k>, 1, strides=2, activation='relu')@({0})", "nn.BatchNorm()@({0})",
        "nn.BatchNorm(scale=False)@({0})",
        "nn.MaxPool2D(2)@({0})", "nn.AvgPool2D(2)@({0})", "nn.GlobalAvgPool2D()@({0})", "nn.Flatten()@({0})",
        "nn.PReLU()@({0})", "nn.InstanceNorm()@({0})", "nn.Conv2DTranspose(<k>, 2)@({0})", "nn.Dropout(0.3)@({0})",
        "nn.Activation('relu')@({0})", "nn.GroupNorm(1)@({0})", "nn.Dense(<k>)@({0})", "nn.Swish()@({0})",
    ),
}  # fmt: skip
# Chains in which compute-heavy operators run twice: these, and light operators between them, of the same shapes.
_BETWEEN = (
    "mx.sym.tanh({0})", "mx.sym.Activation({0}, act_type='relu')", "mx.sym.Dropout({0}, p=0.3)", "{0} + {1}",
    _numpy("{0} + {1}"), _numpy("mx.sym.npx.relu({0} - {1})"),
)  # fmt: skip
_SHORTCUTS = ("F.relu({0} + {1})", _numpy("F.npx.relu({0} + {1})"), _numpy("{0} - {1}"))
CHAINS = {
    2: (
        "mx.sym.FullyConnected({0}, num_hidden=<d1>)", "mx.sym.FullyConnected({0}, num_hidden=<d1>, no_bias=True)",
        "mx.sym.FullyConnected({0}, num_hidden=<k>)", "mx.sym.dot({0}, mx.sym.var('dot<n>', shape=(<d1>, <d1>)))",
        "mx.sym.linalg.gemm2(mx.sym.softmax(mx.sym.linalg.gemm2({0}, {1}, transpose_b=True)), {0})",
        "mx.sym.FullyConnected({0}, num_hidden=<d1>)", "mx.sym.LayerNorm({0})", *_BETWEEN,
    ),
    3: (
        "mx.sym.FullyConnected({0}, num_hidden=<d2>, flatten=False)",
        "mx.sym.FullyConnected({0}, num_hidden=<k>, flatten=False)",
        "mx.sym.batch_dot(mx.sym.softmax(mx.sym.batch_dot({0}, {1}, transpose_b=True)), {0})",
        "mx.sym.batch_dot(mx.sym.Dropout(mx.sym.softmax(mx.sym.batch_dot({0}, {0}, transpose_b=True)), p=0.3), {0})",
        "mx.sym.Convolution({0}, kernel=(3,), pad=(1,), num_filter=<d1>)",
        "mx.sym.RNN({0}, mx.sym.var('rnn<n>_parameters'), mx.sym.var('rnn<n>_h', shape=(1, <d1>, <d2>)), "
        "state_size=<d2>, num_layers=1, mode='gru')",
        "mx.rnn.LSTMCell(<d2>, prefix='lstm<n>_').unroll(<d0>, inputs={0}, layout='TNC', merge_outputs=True)[0]",
        "mx.sym.LayerNorm({0})", *_BETWEEN,
    ),
    4: (
        "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>)",
        "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>, no_bias=True)",
        "mx.sym.Convolution({0}, kernel=(1, 1), num_filter=<k>)",
        "mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>, num_group=<d1>)",
        "mx.sym.Deconvolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>)",
        "mx.sym.relu(mx.sym.BatchNorm(mx.sym.Convolution({0}, kernel=(3, 3), pad=(1, 1), num_filter=<d1>)))",
        "mx.sym.BatchNorm({0}, fix_gamma=False)", "mx.sym.BatchNorm({0})", *_BETWEEN,
    ),
}  # fmt: skip
LAYER_CHAINS = {
    2: ("nn.Dense(<d1>)@({0})", "nn.Dense(<d1>, activation='tanh')@({0})", "nn.Dense(<k>)@({0})",
        "nn.BatchNorm()@({0})", "nn.LayerNorm()@({0})", "nn.Dropout(0.4)@({0})"),
    3: ("nn.Dense(<d2>, flatten=False)@({0})", "nn.Dense(<k>, flatten=False, activation='relu')@({0})",
        "nn.Conv1D(<d1>, 3, padding=1)@({0})", "rnn.GRU(<d2>)@({0})", "nn.LayerNorm()@({0})", "nn.Dropout(0.3)@({0})",
        "rnn.LSTMCell(<d2>)@.unroll(<d0>, {0}, layout='TNC', merge_outputs=True)[0]",
        "F.batch_dot(F.softmax(F.batch_dot({0}, {1}, transpose_b=True)), {0})"),
    4: ("nn.Conv2D(<d1>, 3, padding=1)@({0})", "nn.Conv2D(<d1>, 3, padding=1, use_bias=False)@({0})",
        "nn.Conv2D(<k>, 1, activation='relu')@({0})", "nn.Conv2DTranspose(<d1>, 3, padding=1)@({0})",
        "nn.BatchNorm()@({0})", "nn.BatchNorm()@({0})", "nn.Activation('relu')@({0})", "nn.Dropout(0.3)@({0})",
        *_SHORTCUTS),
}  # fmt: skip
