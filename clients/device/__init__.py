"""The device's side of a service: encode, measure the leak, add keyed noise, ask."""

from clients.device.conversation import PrivatePrediction
from clients.device.device import Device, SentMessages, describe_law, load_device_key
from clients.device.split_client import AsyncSplitClient, DeviceBuilder, OwnImages, SplitClient

__all__ = [
    "AsyncSplitClient",
    "Device",
    "DeviceBuilder",
    "OwnImages",
    "PrivatePrediction",
    "SentMessages",
    "SplitClient",
    "describe_law",
    "load_device_key",
]
