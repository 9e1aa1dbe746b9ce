"""The device's side of a service: encode, measure the leak, add keyed noise, ask."""

from clients.device.conversation import PrivatePrediction
from clients.device.device import Device, DeviceBuilder, ImageOwner
from clients.device.keyed_noise import load_device_key
from clients.device.message_groups import GroupCharge, MessageGroups
from clients.device.sent_messages import SentMessages
from clients.device.split_client import AsyncSplitClient, SplitClient

__all__ = [
    "AsyncSplitClient",
    "Device",
    "DeviceBuilder",
    "GroupCharge",
    "ImageOwner",
    "MessageGroups",
    "PrivatePrediction",
    "SentMessages",
    "SplitClient",
    "load_device_key",
]
