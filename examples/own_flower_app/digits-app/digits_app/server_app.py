"""The server: stock Flower strategies on a grid that packs and unpacks what they send."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from digits_app import model
from fedsys.middleware.grid import CodecGrid

STRATEGIES = {"fedavg": FedAvg, "fedadam": lambda: FedAdam(eta=0.01, tau=0.001)}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds and print the accuracy on digits that no client has."""
    config = context.run_config
    grid = CodecGrid(grid, uplink=config["uplink"], downlink=config["downlink"])
    result = STRATEGIES[config["strategy"]]().start(
        grid=grid,
        initial_arrays=ArrayRecord({k: Array(a) for k, a in model.initial().items()}),
        num_rounds=config["rounds"],
        train_config=ConfigRecord({"local-epochs": config["local-epochs"], "lr": config["lr"]}),
        evaluate_fn=_evaluate,
    )
    final = result.evaluate_metrics_serverapp[config["rounds"]]
    print(f"accuracy after {config['rounds']} rounds: {final['accuracy']:.3f}")


def _evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    weights = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": model.accuracy(weights, model.test_set())})
