"""GluonCV 0.10.5: classification, detection, segmentation, poses, actions."""
MODELS = {}
