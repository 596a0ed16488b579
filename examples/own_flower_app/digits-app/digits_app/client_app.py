"""The client: an ordinary Flower ClientApp, plus ``mods=[codec_mod]``."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import model
from fedsys.middleware.mod import codec_mod

app = ClientApp(mods=[codec_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's digits."""
    examples, config = _data(context), message.content["config"]
    weights, loss = model.train(
        _weights(message),
        examples,
        epochs=int(config["local-epochs"]),
        lr=float(config["lr"]),
        seed=int(config["server-round"]),
    )
    arrays = ArrayRecord({name: Array(array) for name, array in weights.items()})
    metrics = MetricRecord({"num-examples": len(examples[1]), "loss": loss})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How well the global model does on this client's digits."""
    examples = _data(context)
    right = model.accuracy(_weights(message), examples)
    metrics = MetricRecord({"num-examples": len(examples[1]), "accuracy": right})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _weights(message: Message) -> model.Weights:
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def _data(context: Context) -> model.Examples:
    config = context.node_config
    return model.client_set(int(config["partition-id"]), int(config["num-partitions"]))
