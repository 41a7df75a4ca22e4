"""Learning to rank labels: soft ranks on 21 data sets, compared with peers and regression."""
