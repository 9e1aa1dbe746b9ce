"""Names of records and numbers in the messages between the two sides of Flower."""

ARRAYS = "arrays"  # record: the global model, down; a client's weights, up, if asked for
DELTA = "delta"  # record: last minus received model, up
CONFIG = "config"  # record: what a round asks of a client, down
METRICS = "metrics"  # record: numbers, up
STATE = "cel"  # record in a client's own context; never sent
GUARD = "guard"  # record in a client's own context: what its guard counts; never sent
SMASHED = "smashed"  # record: smashed data of a query, (B, D)
SAMPLES = "samples"  # record: posterior samples as flat vectors, (S, P)
LOGITS = "logits"  # record: the private answer, (B, C)

ROUND = "server-round"
WEIGHT = "share"  # w_k, the weight that the server will give to this client's delta
STATE_ROUND = "state-round"  # down: whose state the client is to start from; up: from the next time
INCARNATION = "incarnation"  # a node's number, drawn when it first trains in a run; up
STATE_START = "state-start"  # the round whose state the client started from, 0: none; up
TOTAL = "total-examples"  # N over all clients
THRESHOLD = "cel-threshold"  # tau of this round, where it is adaptive
GAMMA = "cel-gamma"  # gamma of this round, where it is adaptive
PROXIMAL = "proximal-mu"  # FedProx's own name for its pull
SHAPE = "image-shape"  # channels, height, width that the net takes
CLASSES = "classes"  # that the net tells apart
CLASS_NAMES = "class-names"  # of the server's class folders, where its source has such
CLIENTS = "clients"  # of the run, where its run config leaves that to the nodes that are connected
OUT = "out"  # the run folder, where the run config leaves that to the server
EXAMPLES = "num-examples"  # N_k; Flower's own name
PARTITION = "partition"
CODE = "code"  # a digest of the code that a node runs; the server has to have the same
HAS_NODE_DATA = "own-images"  # 1 where a node's images are its own, not dealt from the run's data

COUNT_QUERY = "count"  # query action: how many examples does the node hold?
LOGITS_QUERY = "logits"  # query action: answer smashed data with private logits


def name_incarnation(number: int) -> str:
    """Name a node's incarnation, as its log and the server's do."""
    return f"{number:012x}"
