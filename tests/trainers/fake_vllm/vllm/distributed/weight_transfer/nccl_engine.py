class NCCLTrainerSendWeightsArgs:
    pass


class NCCLWeightTransferEngine:
    pass
