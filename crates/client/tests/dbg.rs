use lockkeeper::*;
use std::time::Duration;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dbg() {
    let d = tempfile::tempdir().unwrap();
    let url = format!("file://{}/l", d.path().display());
    let a = Locks::connect_as(&url, "a").await.unwrap();
    let b = Locks::connect_as(&url, "b").await.unwrap();
    let g = a.mutex("x").grace(Duration::from_millis(100)).acquire().await.unwrap();
    eprintln!("verify own");
    g.verify().await.unwrap();
    eprintln!("break");
    b.break_hold(BreakOrder{name:"x".parse().unwrap(), token: g.token_hint().unwrap(), reason:"r".into(), by:"b".into(), now:false}).await.unwrap();
    let n = b.mutex("x").acquire().await.unwrap();
    eprintln!("next holds");
    eprintln!("{:?}", g.release().await);
    eprintln!("{:?}", a.mutex("x").try_acquire().await.map(|x| x.is_some()));
    n.verify().await.unwrap();
    eprintln!("verified");
}
