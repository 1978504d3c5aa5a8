"""The worker's side of the engine: ``dispatcher.Dispatcher`` tracks sequences, ``links.EngineLinks`` sends."""
