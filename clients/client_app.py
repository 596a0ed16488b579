"""The ClientApp that Flower starts, in a simulation and on a device alike."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.session import evaluate_reply, train_reply
from fedsys.middleware.mod import codec_mod
from fedsys.middleware.place import place_mod

# A plain assignment: flwr looks for it in the syntax tree.
app = ClientApp(mods=[place_mod, codec_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's examples."""
    return train_reply(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate on this client's examples."""
    return evaluate_reply(message, context)
