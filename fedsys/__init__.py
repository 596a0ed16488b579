"""fedsys: federated learning for weak networks, on Flower and PyTorch."""

__version__ = "0.1.0"
