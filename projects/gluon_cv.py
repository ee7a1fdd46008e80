"""GluonCV 0.10.5: classification, detection, segmentation, poses, actions.

Where only shapes matter, images are noise; classes are told apart on scikit-learn's digits. Weights are random.
"""

from __future__ import annotations

import csv
import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from projects.witness import Arrays, parameters

PACKAGE = "gluoncv"
RATE = 0.01


def load() -> None:
    """Imports the project."""
    import gluoncv  # noqa: F401


def _net(name: str, **options: Any) -> Any:
    """A model of the zoo with random weights."""
    from gluoncv.model_zoo import get_model

    net = get_model(name, pretrained=False, **options)
    net.initialize()
    return net


def _noise(*shape: int) -> Any:
    import mxnet as mx

    return mx.nd.array(np.random.RandomState(1).standard_normal(shape))


def digits(batch: int, size: int) -> Iterator[tuple[Any, Any]]:
    """Batches of scikit-learn's handwritten digits, 8 x 8 pixels made larger, and what they are; its code stays out."""
    import mxnet as mx

    spec = importlib.util.find_spec("sklearn")
    path = Path(str(spec and spec.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.array(list(csv.reader(file)), dtype=np.float32)
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        images = mx.nd.array(part[:, :64].reshape(-1, 1, 8, 8) / 16)
        larger = mx.nd.contrib.BilinearResize2D(images, height=size, width=size)
        yield mx.nd.broadcast_axis(larger, axis=1, size=3), mx.nd.array(part[:, 64])


def _fit(net: Any, loss_of: Callable[[], Any], steps: int, trained: Any = None) -> Arrays:
    """Some steps with momentum, as GluonCV's scripts; `loss_of` gives one loss, or several to go backward together."""
    import mxnet as mx

    options = {"learning_rate": RATE, "momentum": 0.9, "wd": 1e-4}
    trainer = mx.gluon.Trainer(net.collect_params() if trained is None else trained, "sgd", options)
    for _ in range(steps):
        with mx.autograd.record():
            loss = loss_of()
        mx.autograd.backward(loss)
        trainer.step(1)
    return parameters([net])


def _classifier(name: str, size: int, batch: int, steps: int, **options: Any) -> Arrays:
    """As train_imagenet.py: hybridized with static memory."""
    import mxnet as mx
    from mxnet.gluon.loss import SoftmaxCrossEntropyLoss

    net = _net(name, classes=10, **options)
    net.initialize(mx.init.MSRAPrelu(), force_reinit=True)
    net.hybridize(static_alloc=True, static_shape=True)
    entropy, batches = SoftmaxCrossEntropyLoss(), digits(batch, size)

    def loss() -> list[Any]:
        images, labels = next(batches)
        outputs = net(images)
        heads = outputs if isinstance(outputs, (list, tuple)) else [outputs]  # GoogLeNet and Inception may have more
        return [entropy(head, labels).mean() for head in heads]

    return _fit(net, loss, steps)


def _boxes(size: int) -> tuple[Any, Any]:
    """Two images' boxes and classes, as (2, 2, 4) and (2, 2, 1)."""
    import mxnet as mx

    boxes = np.array([[[0.1, 0.1, 0.6, 0.5], [0.4, 0.3, 0.9, 0.9]], [[0.2, 0.0, 0.8, 0.7], [0.5, 0.5, 1.0, 1.0]]])
    return mx.nd.array(boxes * (size - 1)), mx.nd.array([[[0], [1]], [[2], [1]]])


def _ssd(name: str, size: int, steps: int) -> Arrays:
    """As train_ssd.py: targets from the anchors, hard negatives mined by the loss."""
    import mxnet as mx
    from gluoncv.loss import SSDMultiBoxLoss
    from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

    net = _net(name, classes=["a", "b", "c"], pretrained_base=False)
    images = _noise(2, 3, size, size)
    with mx.autograd.train_mode():
        _, _, anchors = net(images)
    boxes, ids = _boxes(size)
    classes, targets, _ = SSDTargetGenerator(negative_mining_ratio=-1)(anchors, None, boxes, ids)
    net.hybridize(static_alloc=True, static_shape=True)
    multibox = SSDMultiBoxLoss()

    def loss() -> Any:
        class_predictions, box_predictions, _ = net(images)
        total, _, _ = multibox(class_predictions, box_predictions, classes, targets)
        return total

    return _fit(net, loss, steps)


def _yolo(name: str, size: int, steps: int) -> Arrays:
    """As train_yolo3.py: the transformation of the data prepares the targets, the network returns its losses."""
    import mxnet as mx
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform

    net = _net(name, classes=["a", "b", "c"], pretrained_base=False)
    boxes, ids = _boxes(size)
    transform = YOLO3DefaultTrainTransform(size, size, net)
    pictures = np.random.RandomState(1).randint(0, 256, (2, size, size, 3)).astype(np.uint8)
    labels = np.concatenate([boxes.asnumpy(), ids.asnumpy()], axis=2)
    examples = [transform(mx.nd.array(image, dtype="uint8"), label) for image, label in zip(pictures, labels)]
    images, *targets = (mx.nd.stack(*part) for part in list(zip(*examples))[:6])
    net.hybridize()
    return _fit(net, lambda: sum(one.sum() for one in net(images, boxes, *targets)), steps)


def _rcnn(name: str, size: int, steps: int, **options: Any) -> Arrays:
    """As train_faster_rcnn.py, with the losses of proposals and of classes and boxes (and of masks)."""
    import mxnet as mx
    from mxnet.gluon.loss import HuberLoss, SigmoidBinaryCrossEntropyLoss, SoftmaxCrossEntropyLoss

    net = _net(name, classes=["a", "b", "c"], pretrained_base=False, rpn_train_pre_nms=200, rpn_train_post_nms=50,
               num_sample=16, **options)  # fmt: skip
    net.hybridize(static_alloc=True)
    images = _noise(1, 3, size, size)
    boxes, ids = (one[:1] for one in _boxes(size))
    proposal, entropy, huber = SigmoidBinaryCrossEntropyLoss(), SoftmaxCrossEntropyLoss(), HuberLoss()

    def loss() -> Any:
        scores, shifts, *_, raw_score, raw_box, _, class_target, box_target, box_mask = net(images, boxes, ids)[:11]
        total = entropy(scores, mx.nd.relu(class_target)).sum() + huber(shifts * box_mask, box_target * box_mask).sum()
        total = total + proposal(raw_score, mx.nd.ones_like(raw_score)).sum()
        return total + huber(raw_box, mx.nd.zeros_like(raw_box)).sum()

    return _fit(net, loss, steps, net.collect_train_params() if hasattr(net, "collect_train_params") else None)


def _segmentation(name: str, size: int, steps: int, **options: Any) -> Arrays:
    """As segmentation/train.py: two heads where there is an auxiliary one."""
    import mxnet as mx
    from gluoncv.loss import MixSoftmaxCrossEntropyLoss

    net = _net(name, pretrained_base=False, crop_size=size, **options)
    net.hybridize()
    images = _noise(2, 3, size, size)
    labels = mx.nd.array(np.random.RandomState(1).randint(-1, 5, (2, size, size)))
    mixed = MixSoftmaxCrossEntropyLoss(aux=True)
    single = MixSoftmaxCrossEntropyLoss(aux=False)

    def loss() -> Any:
        outputs = net(images)
        return (mixed(*outputs[:2], labels) if len(outputs) > 1 else single(outputs[0], labels)).mean()

    return _fit(net, loss, steps)


def _maps(outputs: Any) -> list[Any]:
    """CenterNet has one map for each of a few things, pose networks have one."""
    return [outputs] if not isinstance(outputs, (list, tuple)) else list(outputs)


def _pose(name: str, size: tuple[int, int], steps: int, **options: Any) -> Arrays:
    """As simple_pose/train_simple_pose.py: heat maps."""
    import mxnet as mx
    from mxnet.gluon.loss import L2Loss

    net = _net(name, **options)
    net.hybridize(static_alloc=True, static_shape=True)
    images, distance = _noise(2, 3, *size), L2Loss()
    random = np.random.RandomState(1)
    targets = [mx.nd.array(random.random_sample(map_.shape)) for map_ in _maps(net(images))]

    def loss() -> Any:
        return sum(distance(map_, target).mean() for map_, target in zip(_maps(net(images)), targets))

    return _fit(net, loss, steps)


def _action(name: str, shape: Sequence[int], steps: int, **options: Any) -> Arrays:
    """As action-recognition/train_recognizer.py: clips of noise."""
    import mxnet as mx
    from mxnet.gluon.loss import SoftmaxCrossEntropyLoss

    net = _net(name, nclass=5, pretrained_base=False, **options)
    net.hybridize(static_alloc=True, static_shape=True)
    clips, entropy = _noise(*shape), SoftmaxCrossEntropyLoss()
    return _fit(net, lambda: entropy(net(clips), mx.nd.arange(shape[0])).mean(), steps)


_CLASSIFIERS: dict[str, tuple[int, int]] = {  # size of the images, and how many
    "cifar_resnet20_v1": (32, 8),
    "cifar_resnet20_v2": (32, 8),
    "cifar_resnext29_32x4d": (32, 2),
    "cifar_wideresnet16_10": (32, 2),
    "resnet18_v1": (64, 4),
    "resnet18_v2": (64, 4),
    "resnet18_v1b": (64, 4),
    "resnet50_v1d": (64, 2),
    "resnet50_v1s": (64, 2),
    "resnest14": (64, 2),
    "se_resnet18_v1": (64, 4),
    "se_resnext50_32x4d": (64, 2),
    "mobilenet0.25": (64, 4),
    "mobilenetv2_0.25": (64, 4),
    "mobilenetv3_small": (64, 4),
    "densenet121": (224, 1),
    "googlenet": (224, 1),
    "inceptionv3": (299, 1),
    "xception": (128, 2),
    "vgg11_bn": (64, 2),
    "alexnet": (128, 4),
    "squeezenet1.1": (224, 1),
    "shufflenet_v1": (64, 4),
    "dla34": (64, 2),
    "hrnet_w18_small_v1_c": (64, 2),
    "nasnet_4_1056": (64, 2),
    "darknet53": (64, 2),
    "cifar_residualattentionnet56": (32, 2),
}

MODELS: dict[str, Callable[[int], Arrays]] = {
    **{name: functools.partial(_classifier, name, *sizes) for name, sizes in _CLASSIFIERS.items()},
    "ssd_mobilenet0.25": functools.partial(_ssd, "ssd_300_mobilenet0.25_custom", 128),
    "yolo3_mobilenet0.25": functools.partial(_yolo, "yolo3_mobilenet0.25_custom", 64),
    "faster_rcnn_resnet50_v1b": functools.partial(_rcnn, "faster_rcnn_resnet50_v1b_custom", 96),
    "fcn_resnet50": functools.partial(_segmentation, "fcn_resnet50_ade", 64),
    "psp_resnet50": functools.partial(_segmentation, "psp_resnet50_ade", 96),
    "deeplab_resnet50": functools.partial(_segmentation, "deeplab_resnet50_ade", 96),
    "fastscnn": functools.partial(_segmentation, "fastscnn_citys", 96, aux=True),
    "simple_pose_resnet18": functools.partial(_pose, "simple_pose_resnet18_v1b", (128, 96), pretrained_base=False),
    "mobile_pose_mobilenetv3": functools.partial(
        _pose, "mobile_pose_mobilenetv3_small", (128, 96), pretrained_base=False
    ),
    "alpha_pose_resnet101": functools.partial(_pose, "alpha_pose_resnet101_v1b_coco", (128, 96), pretrained_base=False),
    "center_net_resnet18": functools.partial(_pose, "center_net_resnet18_v1b_voc", (128, 128), pretrained_base=False),
    "p3d_resnet50": functools.partial(_action, "p3d_resnet50_kinetics400", (1, 3, 8, 56, 56)),
    "i3d_inceptionv1": functools.partial(_action, "i3d_inceptionv1_kinetics400", (1, 3, 16, 64, 64)),
    "r2plus1d_resnet18": functools.partial(_action, "r2plus1d_resnet18_kinetics400", (1, 3, 8, 56, 56)),
    "slowfast_4x16_resnet50": functools.partial(_action, "slowfast_4x16_resnet50_custom", (1, 3, 36, 64, 64)),
}
