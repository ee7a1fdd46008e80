def training_graph_from_printout(*a): raise NotImplementedError
