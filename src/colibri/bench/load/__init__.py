"""The load harness: requests sent at scheduled times, every token's arrival kept, answers judged by receipts.

Belongs here: when requests are sent (`arrivals`, `trace_file`), what they ask (`lengths`, `prompts`,
`workload`), where they go (`targets`), the run itself (`runner`), what came back (`record`) and what it means
(`metrics`, `slo`, `validity`, `oracle`, `report`). Does not belong here: the server's parts, starting
processes, painting. A run in a thread beside something else:

    with LoadRun(GrpcTarget(target), workload, ClosedLoop(users=8)) as run:
        ...
        run.stop(drain_s=30.0)
        result = run.wait(60.0)
    worst = max((gap for record in result.records for gap in record.gaps()), key=lambda gap: gap.seconds)
"""
