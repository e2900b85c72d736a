from enum import Enum


class StructuredOutputsParams:
    pass


class RequestOutputKind(Enum):
    FINAL_ONLY = 2
