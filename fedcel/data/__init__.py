"""Sources of images, and who gets which of them."""

from fedcel.data.augmentation import augment_images
from fedcel.data.first_images import check_first_images
from fedcel.data.images import Images
from fedcel.data.node_data import NodeDataSettings, list_classes
from fedcel.data.pictures import PICTURE_CHANGES, decode_pictures
from fedcel.data.sources import SOURCES, Source, SourceData, read_source
from fedcel.data.splits import Attributes, Splits, describe_images, load_attributes, load_splits

__all__ = [
    "PICTURE_CHANGES",
    "SOURCES",
    "Attributes",
    "Images",
    "NodeDataSettings",
    "Source",
    "SourceData",
    "Splits",
    "augment_images",
    "check_first_images",
    "decode_pictures",
    "describe_images",
    "list_classes",
    "load_attributes",
    "load_splits",
    "read_source",
]
