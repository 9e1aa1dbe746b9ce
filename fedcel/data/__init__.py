"""Sources of images, and who gets which of them."""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.data.augmentation import AUGMENTATIONS as AUGMENTATIONS
    from fedcel.data.augmentation import augment_images as augment_images
    from fedcel.data.augmentation import check_augmentations as check_augmentations
    from fedcel.data.cifar import Cifar as Cifar
    from fedcel.data.data_settings import DataSettings as DataSettings
    from fedcel.data.idx import Idx as Idx
    from fedcel.data.image_cache import read_cached as read_cached
    from fedcel.data.image_folder import ImageFolder as ImageFolder
    from fedcel.data.image_folder import find_folder_source as find_folder_source
    from fedcel.data.images import Images as Images
    from fedcel.data.images import SourceParts as SourceParts
    from fedcel.data.images import check_images as check_images
    from fedcel.data.images import match_pixels as match_pixels
    from fedcel.data.node_data import NodeDataSettings as NodeDataSettings
    from fedcel.data.npz import Npz as Npz
    from fedcel.data.partition import ClientImages as ClientImages
    from fedcel.data.partition import ClientSlices as ClientSlices
    from fedcel.data.partition import Dirichlet as Dirichlet
    from fedcel.data.partition import Iid as Iid
    from fedcel.data.partition import Natural as Natural
    from fedcel.data.partition import Partition as Partition
    from fedcel.data.partition import Shards as Shards
    from fedcel.data.pictures import PICTURE_CHANGES as PICTURE_CHANGES
    from fedcel.data.pictures import check_first_images as check_first_images
    from fedcel.data.pictures import decode_pictures as decode_pictures
    from fedcel.data.source import Digits as Digits
    from fedcel.data.source import FileSource as FileSource
    from fedcel.data.source import HuggingFace as HuggingFace
    from fedcel.data.source import ImportedSource as ImportedSource
    from fedcel.data.source import Source as Source
    from fedcel.data.source import SourceData as SourceData
    from fedcel.data.source import read_source as read_source
    from fedcel.data.splits import Splits as Splits
    from fedcel.data.splits import load_attributes as load_attributes
    from fedcel.data.splits import load_splits as load_splits
    from fedcel.tensors import to_floats as to_floats
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
