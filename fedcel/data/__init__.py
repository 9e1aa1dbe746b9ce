"""Sources of images, and who gets which of them."""

from fedcel.data.augmentation import augment_images
from fedcel.data.cifar import Cifar
from fedcel.data.data_settings import DataSettings
from fedcel.data.idx import Idx
from fedcel.data.image_folder import ImageFolder
from fedcel.data.images import Images, SourceParts
from fedcel.data.node_data import NodeDataSettings
from fedcel.data.npz import Npz
from fedcel.data.partition import Dirichlet, Iid, Natural, Partition, Shards
from fedcel.data.pictures import PICTURE_CHANGES, check_first_images, decode_pictures
from fedcel.data.source import (
    Diabetes,
    Digits,
    FileSource,
    HuggingFace,
    ImportedSource,
    Source,
    SourceData,
    read_source,
)
from fedcel.data.splits import Attributes, Splits, describe_images, load_attributes, load_splits

__all__ = [
    "PICTURE_CHANGES",
    "Attributes",
    "Cifar",
    "DataSettings",
    "Diabetes",
    "Digits",
    "Dirichlet",
    "FileSource",
    "HuggingFace",
    "Idx",
    "Iid",
    "ImageFolder",
    "Images",
    "ImportedSource",
    "Natural",
    "NodeDataSettings",
    "Npz",
    "Partition",
    "Shards",
    "Source",
    "SourceData",
    "SourceParts",
    "Splits",
    "augment_images",
    "check_first_images",
    "decode_pictures",
    "describe_images",
    "load_attributes",
    "load_splits",
    "read_source",
]
