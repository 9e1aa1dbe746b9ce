"""The device's side of a service: encode, measure the leak, add keyed noise, ask."""

from clients.device.conversation import PrivatePrediction as PrivatePrediction
from clients.device.device import Device as Device
from clients.device.device import ImageOwner as ImageOwner
from clients.device.keyed_noise import load_device_key as load_device_key
from clients.device.sent_messages import SentMessages as SentMessages
from clients.device.split_client import SplitClient as SplitClient
from fedcel.lazy import list_names as _list_names

__all__ = _list_names(globals())
