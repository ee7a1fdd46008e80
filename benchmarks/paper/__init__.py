"""The evaluation of Echo (Zheng et al., ISCA 2020) and EcoRNN (Zheng et al., MICRO 2018), re-run on planned memory.

MXNet's planner gives exact bytes without owning memory, so models of the papers' sizes are planned on any machine.
`workloads` names the models, one module builds each kind; `footprint`, `sweeps` and `largest` each answer one claim.
"""
